package conn

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/redis/go-redis/v9"
)

// Where go-redis reads from a socket, it makes room for whatever length the other end announces, so
// that one node of many could end the process. What is not read in resp.go therefore goes through a
// scanner: it follows the protocol, holds nothing back, and breaks the connection where the replies of an
// exchange, which is what comes between two writes, announce or have more than its budget, or lists in each
// other that are deeper than any.

// Bound makes all connections of a client with these options bounded in what the other end may make it
// take in one exchange. No other goroutine may write to such a connection while one reads.
func Bound(o *redis.Options) { BoundTo(o, mostAnswers) }

// BoundTo is Bound, with so much for one exchange.
func BoundTo(o *redis.Options, most int) {
	dial := o.Dialer
	if dial == nil {
		dial = redis.NewDialer(o)
	}
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return newScanner(c, most), nil
	}
}

// TooMuch reports whether an error is that of an exchange beyond its budget.
func TooMuch(err error) bool { return errors.Is(err, errTooMuch) }

const (
	// mostAnswers is what the replies of one exchange may take: CONFIG GET and INFO of a server with
	// everything are a tenth of it.
	mostAnswers = 1 << 20
	// perElement is what an element of a reply takes at least, beside its bytes.
	perElement = 64
	// deepest is for what a user's OnConnect may ask for.
	deepest = 32
)

// scanner is a connection that breaks rather than let a reply through that announces too much. It
// is used by one goroutine at a time.
type scanner struct {
	net.Conn
	most   int // of one exchange
	broken error

	line   int    // bytes of the present line
	kind   byte   // its first
	number int    // its digits
	sign   bool   // they follow a '-'
	odd    bool   // what follows is no number
	body   int    // bytes of a string that are to come, with its end
	left   int    // of the budget of the present exchange
	open   []int  // elements that are to come of each list that is not complete
	room   [8]int // for open
}

func newScanner(c net.Conn, most int) *scanner { return &scanner{Conn: c, most: most, left: most} }

// Write begins an exchange, or goes on with what is asked in it.
func (s *scanner) Write(p []byte) (int, error) {
	s.left = s.most
	return s.Conn.Write(p)
}

func (s *scanner) Read(p []byte) (int, error) {
	if s.broken != nil {
		return 0, s.broken
	}
	n, err := s.Conn.Read(p)
	if s.broken = s.scan(p[:n]); s.broken != nil {
		return 0, s.broken
	}
	return n, err
}

func (s *scanner) scan(p []byte) error {
	for len(p) > 0 {
		if s.body > 0 {
			n := min(s.body, len(p))
			if s.body, p = s.body-n, p[n:]; s.body == 0 {
				s.ended()
			}
			continue
		}
		if err := s.byte(p[0]); err != nil {
			return err
		}
		p = p[1:]
	}
	return nil
}

// byte takes the next byte of a line.
func (s *scanner) byte(b byte) error {
	if s.line == 0 {
		s.kind, s.number, s.sign, s.odd = b, 0, false, false
	} else if digit := b - '0'; digit <= 9 {
		s.number = min(10*s.number+int(digit), 1<<40)
	} else if b == '-' && s.line == 1 {
		s.sign = true
	} else if b != '\r' && b != '\n' {
		s.odd = true
	}
	s.line++
	s.left--
	if s.left < 0 || s.line > longestLine {
		return s.tooMuch()
	}
	if b != '\n' {
		return nil
	}
	s.line = 0
	return s.header()
}

// header heeds what a line announces.
func (s *scanner) header() error {
	n := s.number
	switch s.kind {
	case '$', '!', '=':
		if s.sign {
			break
		}
		if s.odd || n > s.left {
			return s.tooMuch()
		}
		s.left -= n
		s.body = n + len("\r\n")
		return nil
	case '*', '~', '>', '%':
		if s.sign {
			break
		}
		if s.kind == '%' {
			n *= 2
		}
		if s.odd || n > s.left/perElement || len(s.open) >= deepest {
			return s.tooMuch()
		}
		s.left -= n * perElement // go-redis makes room for them at once
		if n > 0 {
			if s.open == nil {
				s.open = s.room[:0]
			}
			s.open = append(s.open, n)
			return nil
		}
	case '|':
		return s.tooMuch() // go-redis reads attributes by recursion, and no command here has them
	}
	s.ended()
	return nil
}

// ended notes the end of an element, and of the lists that it is the last of.
func (s *scanner) ended() {
	for len(s.open) > 0 {
		last := len(s.open) - 1
		if s.open[last]--; s.open[last] > 0 {
			return
		}
		s.open = s.open[:last]
	}
}

func (s *scanner) tooMuch() error {
	return fmt.Errorf("%w: more than %d bytes, by a reply that begins with %q", errTooMuch, s.most, s.kind)
}
