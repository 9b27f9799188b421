package admin

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
)

// Severity is how much a Finding matters.
type Severity uint8

const (
	// SeverityInfo: good to know, or something that could not be read.
	SeverityInfo Severity = iota + 1
	// SeverityWarning: locks work, but an event that will happen some day (a restart, a
	// failover, one more node down) breaks them, or something works worse than it could.
	SeverityWarning
	// SeverityCritical: the node is of no use, or locks are lost in normal operation.
	SeverityCritical
)

var severities = [...]string{"none", "info", "warning", "critical"}

// String returns "info", "warning" or "critical", and "none" for the zero value.
func (s Severity) String() string {
	if int(s) < len(severities) {
		return severities[s]
	}
	return "severity " + strconv.Itoa(int(s))
}

// MarshalText returns the String, so that JSON has words instead of numbers.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the text that MarshalText returns. It fails with ErrInvalid for any
// other.
func (s *Severity) UnmarshalText(text []byte) error {
	for i, name := range severities {
		if name == string(text) {
			*s = Severity(i)
			return nil
		}
	}
	return fmt.Errorf("redlock: %w severity %.40q: must be one of %s", ErrInvalid, text, strings.Join(severities[:], ", "))
}

// Finding is one result of Check.
type Finding struct {
	// Node is the node's name, as in Names; empty if the finding is about all nodes.
	Node     string   `json:"node,omitempty"`
	Severity Severity `json:"severity"`
	// Code names the kind of finding for programs, and keeps its meaning between versions.
	// Newer versions may have more. The codes are barred, clock-local, clocks-apart,
	// cluster-node, even-number, eviction, incomplete, lists-differ, memory-mark, no-quorum, no-redis,
	// no-vote, persistence, puts, refused, replica, replicas, rights, rights-bundle (releases), rights-digest, rights-foreign,
	// rights-keys, rights-memory, rights-name, rights-notify, rights-queue (the wait queue), rights-shared, same-server,
	// sentinel, single-node, slow, unreachable, unread, version and young.
	Code string `json:"code"`
	// Message says what was found and what it means; Advice says what to do.
	Message string `json:"message"`
	Advice  string `json:"advice"`
}

// Report is what Check has learned. String formats it as tables. In JSON, a field that has a
// unit has it at the end of its name. JSON is for other programs to read: there is no
// UnmarshalJSON, and a Report that is read back lacks most of what its nodes told.
type Report struct {
	// Quorum is how many nodes must grant a lock.
	Quorum int `json:"quorum"`
	// Nodes has one entry per node, in the order of Names.
	Nodes []NodeReport `json:"nodes"`
	// Findings are ordered by severity, the worst first, and then by node.
	Findings []Finding `json:"findings"`
}

// Worst returns the severity of the worst finding, zero if there is none.
func (r Report) Worst() (worst Severity) {
	for _, f := range r.Findings {
		worst = max(worst, f.Severity)
	}
	return worst
}

// NodeReport is what one node told about itself. Fields that could not be read are zero, and
// Unread names them.
type NodeReport struct {
	Node string
	// Reachable is true if a server answered, even with an error. Err is why the node does
	// not serve us: that error, or why there was no answer.
	Reachable bool
	Err       error
	// Latency is the shortest of a few round trips.
	Latency time.Duration
	// ClockOffset is how far the node's clock is ahead of this machine's. The true value
	// differs from it by ClockMargin at most, which is half a round trip.
	ClockOffset, ClockMargin time.Duration
	// Version is "redis 7.2.4" or "valkey 8.0.1". RunID is the server's random id, a new
	// one at every start.
	Version, RunID string
	// Uptime is in whole seconds, and may be up to one second too long. It is 0 if the
	// server's clock was set back behind its start.
	Uptime time.Duration
	// RemembersSince is since when the node has lost no data, by its memory mark and by this
	// machine's clock: a restart, a failover to a replica, FLUSHALL and a restored backup
	// begin it anew, once a client has written a new mark. Check writes none. It is the date
	// of that mark, so no earlier than the first use of these nodes.
	//
	// It is zero if there is no mark, or only one that belongs to other data; for a replica;
	// with the restart guard off; and where the mark, INFO server or TIME could not be read.
	RemembersSince time.Time
	// NoVote is why a client that starts now would not count the node's grants of locks of Options.TTL, in the words of
	// redlock.Outcome. It is nil if it would, and where there is no answer to tell that from, as with Err. With the guard
	// off only replicas, Sentinels and users without the rights of a lock have no vote.
	NoVote error
	// Puts is how often this process was told to put other data in the place of its own, by DEBUG, SWAPDB, REPLICAOF,
	// SLAVEOF or FAILOVER. Each bars the node for the guard's time. 0 also where the server does not count commands.
	Puts int64
	// BarredFor is for how much longer the restart guard keeps the node's grants from counting,
	// for a client that starts now and for locks of Options.TTL; see redlock.Options.RestartGuard. It is
	// zero if they count, if the guard is off, and where that cannot be known: see NoVote.
	BarredFor time.Duration
	// Role is "master", "slave" or "sentinel"; Mode "standalone", "cluster" or "sentinel".
	Role, Mode string
	// Replicas is how many replicas are connected.
	Replicas int
	// MaxMemory is in bytes; 0 means no limit.
	MaxMemory       int64
	MaxMemoryPolicy string
	// EvictedKeys is how many keys the server has thrown away since its start because its memory
	// was full.
	EvictedKeys int64
	// AppendOnly is "yes" or "no", AppendFsync "always", "everysec" or "no".
	AppendOnly, AppendFsync string
	// Unread names each thing that could not be read, with the reason.
	Unread []string

	timed, aged, counted bool // ClockOffset, Uptime and EvictedKeys are known; all may be zero
}

// MarshalJSON leaves out fields that are not known. Durations are numbers, in the unit that
// the field's name ends with; RemembersSince is a time of RFC 3339, in UTC.
func (n NodeReport) MarshalJSON() ([]byte, error) {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	out := struct {
		Node            string   `json:"node"`
		Reachable       bool     `json:"reachable"`
		Error           string   `json:"error,omitempty"`
		LatencyMS       float64  `json:"latency_ms,omitempty"`
		ClockOffsetMS   *float64 `json:"clock_offset_ms,omitempty"`
		ClockMarginMS   *float64 `json:"clock_margin_ms,omitempty"`
		Version         string   `json:"version,omitempty"`
		RunID           string   `json:"run_id,omitempty"`
		UptimeS         *int64   `json:"uptime_s,omitempty"`
		RemembersSince  string   `json:"remembers_since,omitempty"`
		BarredForMS     float64  `json:"barred_for_ms,omitempty"`
		NoVote          string   `json:"no_vote,omitempty"`
		Puts            int64    `json:"puts,omitempty"`
		Role            string   `json:"role,omitempty"`
		Mode            string   `json:"mode,omitempty"`
		Replicas        *int     `json:"replicas,omitempty"`
		MaxMemoryBytes  *int64   `json:"maxmemory_bytes,omitempty"`
		MaxMemoryPolicy string   `json:"maxmemory_policy,omitempty"`
		EvictedKeys     *int64   `json:"evicted_keys,omitempty"`
		AppendOnly      string   `json:"appendonly,omitempty"`
		AppendFsync     string   `json:"appendfsync,omitempty"`
		Unread          []string `json:"unread,omitempty"`
	}{
		Node: n.Node, Reachable: n.Reachable, LatencyMS: ms(n.Latency), Version: n.Version, RunID: n.RunID,
		RemembersSince: date(n.RemembersSince), BarredForMS: ms(n.BarredFor), Role: n.Role, Mode: n.Mode, MaxMemoryPolicy: n.MaxMemoryPolicy,
		AppendOnly: n.AppendOnly, AppendFsync: n.AppendFsync, Unread: n.Unread, Puts: n.Puts,
	}
	if n.NoVote != nil {
		out.NoVote = n.NoVote.Error()
	}
	if n.Err != nil {
		out.Error = n.Err.Error()
	}
	if n.timed {
		offset, margin := ms(n.ClockOffset), ms(n.ClockMargin)
		out.ClockOffsetMS, out.ClockMarginMS = &offset, &margin
	}
	if n.aged {
		s := int64(n.Uptime / time.Second)
		out.UptimeS = &s
	}
	if n.Role != "" {
		out.Replicas = &n.Replicas
	}
	if n.counted {
		out.EvictedKeys = &n.EvictedKeys
	}
	if n.MaxMemoryPolicy != "" {
		out.MaxMemoryBytes = &n.MaxMemory
	}
	return json.Marshal(out)
}

// String returns a table of the nodes and one of the findings, each with its advice. A node's STATE is
// its worst finding, if that is more than good to know.
func (r Report) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(cells ...string) {
		for i, c := range cells {
			cells[i] = protocol.OneLine(c)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	row("NODE", "STATE", "LATENCY", "CLOCK", "ROLE", "REPLICAS", "VERSION", "UPTIME", "REMEMBERS SINCE", "PERSISTENCE", "EVICTION")
	for _, n := range r.Nodes {
		cells := []string{n.Node, r.state(n.Node), "-", "-", "-", "-", "-", "-", "-", "-", "-"}
		set := func(i int, known bool, text string) {
			if known && text != "" {
				cells[i] = text
			}
		}
		set(2, n.Latency > 0, n.Latency.Round(10*time.Microsecond).String())
		set(3, n.timed, fmt.Sprintf("%+.1fms", float64(n.ClockOffset.Microseconds())/1000))
		set(4, true, n.Role)
		set(5, n.Role != "", strconv.Itoa(n.Replicas))
		set(6, true, n.Version)
		set(7, n.aged, n.Uptime.String())
		set(8, true, date(n.RemembersSince))
		switch n.AppendOnly {
		case "yes":
			cells[9] = strings.TrimSpace("aof " + n.AppendFsync)
		case "no":
			cells[9] = "no aof"
		}
		set(10, true, n.MaxMemoryPolicy)
		row(cells...)
	}
	_ = w.Flush()
	if len(r.Findings) == 0 {
		b.WriteString("\nNothing found.\n")
		return b.String()
	}
	b.WriteByte('\n')
	row("SEVERITY", "CODE", "NODE", "FINDING")
	for _, f := range r.Findings {
		node := f.Node
		if node == "" {
			node = "(all)"
		}
		row(f.Severity.String(), f.Code, node, f.Message)
		row("", "", "", "-> "+f.Advice)
	}
	_ = w.Flush()
	return b.String()
}

// state is the worst that was found of a node.
func (r Report) state(node string) string {
	for _, f := range r.Findings { // the worst first
		if f.Node == node && f.Severity > SeverityInfo {
			return f.Code
		}
	}
	return "ok"
}

// date is a time in whole seconds and in UTC, which servers' logs and machines in other
// zones can be compared with; empty if it is not known.
func date(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}
