package conn

import (
	"crypto/tls"
	"strconv"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
)

// stamp shows that the replies to a batch are its own where the system cannot be asked whether something has come
// before, since TLS may hold it. The batch begins with PING and a number that was not used before, and a reply that was
// not asked for stands where the number is to come back.
//
// It takes a server that answers PING, with its argument. Another one's replies are looked at as far as they lie in our own
// buffer and in the system's.
type stamp struct {
	wanted bool // over TLS
	works  bool // the server has sent one back
	number uint64
	sent   string // with the last batch or question
	denied bool   // the server answered it with an error, so that it may yet come back
}

func (s *socket) isSecure() bool {
	_, secure := s.Conn.(*tls.Conn)
	return secure
}

// next makes a number.
func (s *stamp) next() string {
	s.number++
	s.sent = strconv.FormatUint(s.number, 10)
	return s.sent
}

// ping is the question for a sign of life, with a number where that is wanted.
func (s *stamp) ping() []string {
	if s.wanted {
		return []string{"PING", s.next()}
	}
	return []string{"PING"}
}

// learnStamp takes in what came of that question.
func (f *ownFlow) learnStamp(ping answer) {
	text, err := ping.text()
	switch s := &f.stamp; {
	case !s.wanted || ping.err != nil:
	case err == nil && text == s.sent:
		s.works = true
	case s.works || err != nil || text != "PONG":
		f.in.misplaced()
	}
}

// readStamp reads what a batch begins with.
func (f *ownFlow) readStamp() {
	text, err := f.answer().text()
	if f.stamp.denied = protocol.IsServerError(err); !f.stamp.denied && text != f.stamp.sent {
		f.in.misplaced()
	}
}

// checkStamp breaks the connection if the number has come back for one of the requests.
func (f *ownFlow) checkStamp(batch []*lane.Call) {
	if !f.stamp.denied {
		return
	}
	f.stamp.denied = false
	for _, c := range batch {
		if c.Said == any(f.stamp.sent) {
			f.in.misplaced()
		}
	}
}
