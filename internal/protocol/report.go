package protocol

import (
	"errors"
	"time"
)

// ServerReport is what a server tells of itself over one connection.
type ServerReport struct {
	RunID    string
	ReplID   string        // INFO replication: master_replid; empty: not told
	FormerID string        // INFO replication: master_replid2; empty: not told
	Role     string        // "master", "slave"; empty: not told
	Uptime   time.Duration // whole seconds, by the node's wall clock
	Mark     Mark
	Native   NativeDelete
	// Asked: this is an answer to the full question, or to a mark's writing, and no SET
	// went ahead of it in its batch. Two of them may arrive in the wrong order. Without it
	// the report is a look: run id of the connection and mark, read behind SETs whose
	// grants are to be judged by it.
	Asked bool
	At    int64 // when it was asked for, by our monotonic clock, or before, where our machine slept since; 0: not known
	Err   error // why there is no identity; nothing else is set then
}

// ReadServer takes what INFO server tells. Its error is for good: this server does not
// tell its identity.
func (s *ServerReport) ReadServer(text string) error {
	info := ParseInfo(text)
	s.Native = info.CompareAndDelete()
	uptime, told := info.Uptime()
	if s.RunID, s.Uptime = info.RunID(), uptime; s.RunID == "" || !told {
		return errMuteServer
	}
	return nil
}

var errMuteServer = errors.New("INFO server tells no run_id or no uptime_in_seconds")

// ReadReplication takes what INFO replication tells.
func (s *ServerReport) ReadReplication(text string) {
	info := ParseInfo(text)
	s.Role, s.ReplID, s.FormerID = info["role"], info["master_replid"], info["master_replid2"]
}
