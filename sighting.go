package redlock

import (
	"errors"
	"strconv"
	"strings"
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
	told := false
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "run_id":
			s.runID = value
		case "uptime_in_seconds": // negative where the clock was set back
			n, err := strconv.ParseInt(value, 10, 64)
			s.uptime, told = time.Duration(min(max(n, 0), int64(maxAge/time.Second)))*time.Second, err == nil
		}
	}
	if s.runID == "" || !told {
		return errMuteServer
	}
	return nil
}

var errMuteServer = errors.New("INFO server tells no run_id or no uptime_in_seconds")

// readReplication takes what INFO replication tells.
func (s *sighting) readReplication(text string) {
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "role":
			s.role = value
		case "master_replid":
			s.replID = value
		}
	}
}
