package redlock

import (
	"errors"
	"time"
)

// sighting is what a server tells of itself over one connection.
type sighting struct {
	runID    string
	replID   string        // INFO replication: master_replid; empty: not told
	formerID string        // INFO replication: master_replid2; empty: not told
	role     string        // "master", "slave"; empty: not told
	clientID int64         // CLIENT ID of this connection; 0: not told, so it cannot be killed
	idErr    error         // why, where it is denied for good
	uptime   time.Duration // whole seconds, by the node's wall clock
	mark     mark
	native   nativeDelete
	// asked: this is an answer to the full question, or to a mark's writing, and no SET
	// went ahead of it in its batch. Two of them may arrive in the wrong order. Without it
	// the sighting is a look: run id of the connection and mark, read behind SETs whose
	// grants are to be judged by it.
	asked bool
	err   error // why there is no identity; nothing else is set then
}

// readServer takes what INFO server tells. Its error is for good: this server does not
// say who it is.
func (s *sighting) readServer(text string) error {
	info := parseInfo(text)
	s.native = info.compareAndDelete()
	uptime, told := info.uptime()
	if s.runID, s.uptime = info.runID(), uptime; s.runID == "" || !told {
		return errMuteServer
	}
	return nil
}

var errMuteServer = errors.New("INFO server tells no run_id or no uptime_in_seconds")

// readReplication takes what INFO replication tells.
func (s *sighting) readReplication(text string) {
	info := parseInfo(text)
	s.role, s.replID, s.formerID = info["role"], info["master_replid"], info["master_replid2"]
}
