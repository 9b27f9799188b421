package admin

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReportPrintsAndMarshals(t *testing.T) {
	r := Report{
		Quorum: 2,
		Nodes: []NodeReport{
			{Node: "10.0.0.1:6379/0", Reachable: true, Latency: 420 * time.Microsecond, Role: "master", Version: "redis 7.2.4\x1b[31m\n", AppendOnly: "yes", AppendFsync: "always", MaxMemoryPolicy: "noeviction",
				RemembersSince: time.Date(2026, 11, 22, 4, 30, 0, 5e8, time.FixedZone("", 3600))},
			{Node: "10.0.0.20:6379/0", Err: errors.New("no answer")},
		},
		Findings: []Finding{{Node: "10.0.0.20:6379/0", Severity: SeverityWarning, Code: "unreachable", Message: "no answer", Advice: "bring it back"},
			{Severity: SeverityInfo, Code: "even-number", Message: "two", Advice: "use three"}},
	}
	assert.Equal(t, `NODE              STATE        LATENCY  CLOCK  ROLE    REPLICAS  VERSION              UPTIME  REMEMBERS SINCE       PERSISTENCE  EVICTION
10.0.0.1:6379/0   ok           420µs    -      master  0         redis 7.2.4\x1b[31m  -       2026-11-22T03:30:00Z  aof always   noeviction
10.0.0.20:6379/0  unreachable  -        -      -       -         -                    -       -                     -            -

SEVERITY  CODE         NODE              FINDING
warning   unreachable  10.0.0.20:6379/0  no answer
                                         -> bring it back
info      even-number  (all)             two
                                         -> use three
`, r.String())
	assert.Contains(t, Report{}.String(), "Nothing found.")

	text, err := json.Marshal(r)
	require.NoError(t, err)
	assert.JSONEq(t, `{"quorum": 2, "nodes": [
		{"node": "10.0.0.1:6379/0", "reachable": true, "latency_ms": 0.42, "version": "redis 7.2.4\u001b[31m\n", "role": "master", "replicas": 0, "remembers_since": "2026-11-22T03:30:00Z",
		 "appendonly": "yes", "appendfsync": "always", "maxmemory_bytes": 0, "maxmemory_policy": "noeviction"},
		{"node": "10.0.0.20:6379/0", "reachable": false, "error": "no answer"}],
		"findings": [{"node": "10.0.0.20:6379/0", "severity": "warning", "code": "unreachable", "message": "no answer", "advice": "bring it back"},
		{"severity": "info", "code": "even-number", "message": "two", "advice": "use three"}]}`, string(text))

	for _, s := range []Severity{SeverityInfo, SeverityWarning, SeverityCritical} {
		var back Severity
		require.NoError(t, back.UnmarshalText([]byte(s.String())))
		assert.Equal(t, s, back)
	}
	var s Severity
	require.ErrorIs(t, s.UnmarshalText([]byte("grave")), ErrInvalid)
	assert.Equal(t, "severity 9", Severity(9).String())
}

// A node that answers may be of no use.
func TestStateIsTheWorstFinding(t *testing.T) {
	info, warning, critical := Finding{Node: "a", Severity: SeverityInfo, Code: "young"}, Finding{Node: "a", Severity: SeverityWarning, Code: "slow"}, Finding{Node: "a", Severity: SeverityCritical, Code: "replica"}
	of := Finding{Node: "b", Severity: SeverityCritical, Code: "eviction"}
	for want, findings := range map[string][]Finding{"replica": {of, critical, warning, info}, "slow": {of, warning, info}, "ok": {of, info}} {
		r := Report{Nodes: []NodeReport{{Node: "a", Reachable: true}}, Findings: findings}
		assert.Regexp(t, `(?m)^a +`+want+` `, r.String())
	}
}

// Programs decide by the code of a finding, so the comment of Finding.Code lists all that there
// are.
func TestCodesOfFindingsAreListed(t *testing.T) {
	used := make(map[string]bool)
	for _, file := range []string{"judge.go", "lists.go"} {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`(?i)severity(?:Info|Warning|Critical)?, "([a-z-]+)"`).FindAllStringSubmatch(string(source), -1) {
			used[m[1]] = true
		}
	}
	source, err := os.ReadFile("report.go")
	require.NoError(t, err)
	_, text, ok := strings.Cut(string(source), "// Newer versions may have more. The codes are ")
	require.True(t, ok)
	text, _, _ = strings.Cut(text, ".")
	var listed []string
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '\n' }) {
		word, _, _ = strings.Cut(strings.TrimLeft(word, "\t/ "), " (")
		listed = append(listed, strings.Split(word, " and ")...)
	}
	listed = slices.DeleteFunc(listed, func(s string) bool { return s == "" })
	require.Greater(t, len(used), 20)
	require.Equal(t, slices.Sorted(maps.Keys(used)), listed)
}
