package protocol

import (
	"fmt"
	"strings"
	"time"
)

// ServerReport is what a server tells of itself over one connection.
type ServerReport struct {
	RunID    string
	ReplID   string        // INFO replication: master_replid; empty: not told
	FormerID string        // INFO replication: master_replid2; empty: not told
	Role     string        // "master", "slave"; empty: not told
	Start    int64         // when the process started by its own clock then, in seconds since 1970; 0: not told
	Puts     int64         // how often the process was told to put other data in place, see ReadCommands
	Time     time.Duration // the node's TIME, since 1970; 0: not asked for
	Mark     Mark
	Native   NativeDelete
	// Asked: this is an answer to the full question, or to a mark's writing, and no SET
	// went ahead of it in its batch. Two of them may arrive in the wrong order. Without it
	// the report is a look: run id of the connection and mark, read behind SETs whose
	// grants are to be judged by it.
	Asked bool
	At    int64 // when it was asked for, by our monotonic clock, or before, where our machine slept since; 0: not known
	Err   error // why there is no vote, whatever else was told
}

// Sections are those of INFO that tell of a server what its votes rest on.
var Sections = [...]string{"server", "replication", "commandstats"}

// ReadInfo takes in the answer to INFO of a section, those of Sections in their order; it needs none of others. Its error
// is why the node has no vote.
func (s *ServerReport) ReadInfo(section, text string, err error) error {
	var read func(string) error
	switch section {
	case "server":
		read = s.ReadServer
	case "replication":
		read = s.ReadReplication
	case "commandstats":
		read = s.ReadCommands
	default:
		return nil
	}
	if err != nil {
		return Unanswered("INFO "+section, err)
	}
	return read(text)
}

// ReadServer takes what INFO server tells. Its error is that it tells no identity.
func (s *ServerReport) ReadServer(text string) error {
	info := ParseInfo(text)
	s.Native = info.CompareAndDelete()
	s.RunID = info.RunID()
	s.Start = info.start()
	return valid("INFO server", text, "run_id", isID(s.RunID))
}

// ReadReplication takes what INFO replication tells, after ReadServer. Its error is that it does not tell all that a
// vote rests on.
func (s *ServerReport) ReadReplication(text string) error {
	info := ParseInfo(text)
	s.Role, s.ReplID, s.FormerID = info["role"], info["master_replid"], info["master_replid2"]
	if err := valid("INFO replication", text, "role", s.Role == "master" || s.Role == "slave"); err != nil {
		return err
	}
	// Some servers give both the same id, which then is not drawn anew when they start.
	return valid("INFO replication", text, "master_replid", isID(s.ReplID) && s.ReplID != s.RunID)
}

// ReadCommands takes what INFO commandstats tells. A server that counts no commands has no section, and counts none of
// these either.
func (s *ServerReport) ReadCommands(text string) error {
	if text != "" && !strings.HasPrefix(text, "# ") {
		return fmt.Errorf("unexpected reply %.100q to INFO commandstats", text)
	}
	s.Puts = ParseInfo(text).puts()
	return nil
}

// valid is nil if a field is as it must be. Where the answer has no field at all, it may be something else's.
func valid(question, answer, field string, ok bool) error {
	switch {
	case ok:
		return nil
	case !strings.HasPrefix(answer, "# "):
		return fmt.Errorf("unexpected reply %.100q to %s", answer, question)
	default:
		return lacking{fmt.Errorf("%s tells no %s that can be one; see Options.NoRestartGuard", question, field), 0}
	}
}

// isID reports whether a server may have drawn this id at its start.
func isID(id string) bool {
	return len(id) == 40 && strings.Trim(id, "0123456789abcdefABCDEF") == "" && strings.Trim(id, "0") != ""
}
