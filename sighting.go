package redlock

import (
	"errors"
	"time"
)

// sighting is what a server tells of itself over one conversation.
type sighting struct {
	runID    string
	replID   string        // of the dataset's history; empty where the server does not tell
	role     string        // "master", "slave"; empty: not told
	clientID int64         // of the connection; 0: not told, so it cannot be killed
	idErr    error         // why, where it is denied for good
	uptime   time.Duration // whole seconds, by the node's wall clock
	mark     mark          // as read over this conversation
	err      error         // why there is no identity, for good; nothing else is set then
}

// readServer takes what INFO server tells. Its error is for good: this server does not
// say who it is.
func (s *sighting) readServer(text string) error {
	info := parseInfo(text)
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
	s.role, s.replID = info["role"], info["master_replid"]
}
