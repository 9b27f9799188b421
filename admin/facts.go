package admin

import (
	"fmt"
	"strconv"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
)

// facts are what is known about a node. The findings are made from them.
type facts struct {
	NodeReport
	elapsed  time.Duration         // until the last of it; 0: nothing
	cut      bool                  // waiting was over before the node had answered everything
	seen     protocol.ServerReport // what the memory is judged by
	noTime   error                 // why its clock is not known
	unread   []unread
	lacks    []denial
	noMark   string // the key of the memory mark, where it holds something else
	markless bool   // a client that came now would leave the mark, from which the guard counts
	barred   string // why it is barred
	newFleet bool   // barred since another node of a new fleet was not seen
	masked   bool   // the probe's key was refused, so nothing is known of rights to keys
	conns    []connection
	listed   bool // it told its connections, which may be none
}

// unread is a question without an answer: what was asked, what is not known without it, and
// the error.
type unread struct{ what, means, err string }

// denial is a right that the user lacks.
type denial struct {
	need need
	what string
	err  string
}

// need is what a right is needed for.
type need uint8

const (
	forLocks need = iota + 1
	forLines
	forNotices
	forMemory
	forSharing
	forBundles
	forForeign
	forNames
	forDigests
)

// serves reports whether the node can be used.
func (f facts) serves() bool { return f.Err == nil }

// votes reports whether the node can be used, and its grants count.
func (f facts) votes() bool {
	return f.serves() && f.NoVote == nil && f.BarredFor <= 0 && f.Role != "slave" && f.Role != "sentinel"
}

// denies is what the server said to a right that the user lacks, nil if it lacks none for that.
func (f facts) denies(n need) error {
	for _, d := range f.lacks {
		if d.need == n {
			return fmt.Errorf("this user lacks %s: %s", d.what, d.err)
		}
	}
	return nil
}

// count counts the nodes of which something is true.
func count(all []facts, that func(facts) bool) (n int) {
	for _, f := range all {
		if that(f) {
			n++
		}
	}
	return n
}

// readInfo takes what one answer to INFO tells, and leaves the rest as it is.
func (n *NodeReport) readInfo(text string) {
	info := protocol.ParseInfo(text)
	set := func(field *string, value string) {
		if value != "" {
			*field = value
		}
	}
	set(&n.RunID, info.RunID())
	if version := info["valkey_version"]; version != "" {
		n.Version = "valkey " + version
	} else if version := info["redis_version"]; version != "" {
		n.Version = "redis " + version
	}
	if d, ok := info.Uptime(); ok {
		n.Uptime, n.aged = d, true
	}
	n.readMode(info)
	set(&n.Role, info["role"])
	if replicas, ok := info.Number("connected_slaves"); ok {
		n.Replicas = int(replicas)
	}
	if bytes, ok := info.Number("maxmemory"); ok {
		n.MaxMemory = bytes
	}
	set(&n.MaxMemoryPolicy, info["maxmemory_policy"])
	if count, ok := info.Number("evicted_keys"); ok {
		n.EvictedKeys, n.counted = count, true
	}
	if on, ok := info["aof_enabled"]; ok {
		n.AppendOnly = yesNo[on == "1"]
	}
}

var yesNo = map[bool]string{true: "yes", false: "no"}

// readMode takes the mode, which the sections server and cluster tell. If they differ, the
// latter counts.
func (n *NodeReport) readMode(info protocol.Info) {
	for _, name := range []string{"redis_mode", "server_mode"} {
		if mode := info[name]; mode != "" {
			n.Mode = mode
		}
	}
	switch enabled, ok := info["cluster_enabled"]; {
	case enabled == "1":
		n.Mode = "cluster"
	case ok && n.Mode == "":
		n.Mode = "standalone"
	}
}

// readRole takes what the answer to ROLE tells.
func (n *NodeReport) readRole(answer []any) {
	if len(answer) == 0 {
		return
	}
	n.Role, _ = answer[0].(string)
	if n.Role == "master" && len(answer) > 2 {
		replicas, _ := answer[2].([]any)
		n.Replicas = len(replicas)
	}
}

// readSetting takes the answer to one CONFIG GET; value is empty if there was none.
func (n *NodeReport) readSetting(name, value string) {
	if value == "" {
		return
	}
	switch name {
	case "appendonly":
		n.AppendOnly = value
	case "appendfsync":
		n.AppendFsync = value
	case "maxmemory":
		if bytes, err := strconv.ParseInt(value, 10, 64); err == nil {
			n.MaxMemory = bytes
		}
	case "maxmemory-policy":
		n.MaxMemoryPolicy = value
	}
}
