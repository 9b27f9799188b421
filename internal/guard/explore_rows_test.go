package guard

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// xRow is a scope in which there are never two holders; beyond: it shows what is not promised.
type xRow struct {
	name    string
	beyond  bool
	states  int // how many it takes to find two holders; 0: as many as the others
	scope   xScope
	clauses map[xClause]int // without each of these there are two holders, in so many states
}

const sec = time.Second

var exploreRows = []xRow{
	{name: "evicted-mark", scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 2, apart: 3, knows: true, coarse: true, flush: true, evictMark: true}},
	{name: "redraw", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, coarse: true, reconnect: true, redraw: true}},
	{name: "short-1", scope: xScope{tick: sec / 2, ttl: 1, clients: 2, faults: 3, apart: 1, knows: true, coarse: true, restartEmpty: true}},
	{name: "short-2", scope: xScope{tick: sec / 2, ttl: 2, clients: 2, faults: 3, apart: 2, knows: true, coarse: true, restartEmpty: true}},
	{name: "fresh", scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 1, apart: 3, fresh: true, genesis: true, coarse: true, restartEmpty: true, flush: true}},
	{name: "fresh-2", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, fresh: true, genesis: true, coarse: true, restartEmpty: true, restartKept: true, restartOld: true, promote: true, flush: true, evictMark: true}},
	{name: "fresh-short", scope: xScope{tick: sec / 2, ttl: 1, clients: 2, faults: 2, apart: 1, fresh: true, genesis: true, coarse: true, flush: true}},
	{name: "fresh-hold", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 1, apart: 2, fresh: true, genesis: true, hold: 4, coarse: true, flush: true}},
	{name: "fresh-names", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, fresh: true, genesis: true, names: true, coarse: true, flush: true}},
	{name: "fresh-3", scope: xScope{tick: sec, ttl: 2, clients: 3, faults: 1, apart: 2, fresh: true, genesis: true, coarse: true, flush: true}},
	{name: "fresh-newcomers", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, fresh: true, genesis: true, newcomers: true, coarse: true, flush: true, evictMark: true}},
	{name: "away", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, first: true, genesis: true, coarse: true, restartEmpty: true, flush: true}},
	{name: "away-short", scope: xScope{tick: sec / 2, ttl: 1, clients: 2, faults: 2, apart: 1, first: true, genesis: true, coarse: true, flush: true}},
	{name: "losses-1", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 1, apart: 2, knows: true, genesis: true, coarse: true, restartEmpty: true, restartOld: true, promote: true, flush: true, evictMark: true, restartKept: true}},
	{name: "losses", scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 2, apart: 3, knows: true, coarse: true, restartEmpty: true, restartOld: true, promote: true, flush: true}},
	{name: "names", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, coarse: true, names: true, restartEmpty: true, flush: true}},
	{name: "losses-3clients", scope: xScope{tick: sec, ttl: 2, clients: 3, faults: 2, apart: 2, knows: true, coarse: true, restartEmpty: true, flush: true, evictMark: true}},
	{name: "hold", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, hold: 4, coarse: true, restartEmpty: true, flush: true, evictMark: true}},
	{name: "fixed", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, fixed: true, fresh: true, genesis: true, coarse: true, restartEmpty: true, flush: true, evictMark: true}},
	{name: "fine", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 1, apart: 2, knows: true, split: true, restartEmpty: true, flush: true, promote: true}},
	{name: "fresh-fine", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 1, apart: 2, fresh: true, genesis: true, split: true, hold: 3, flush: true}},
	{name: "away-back", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, first: true, genesis: true, back: true, coarse: true, lean: true, flush: true}},
	{name: "denied", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, coarse: true, deny: true, restartEmpty: true}},
	{name: "full", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, coarse: true, refuses: "OOM command not allowed", restartEmpty: true, flush: true}},
	{name: "fresh-full", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, fresh: true, genesis: true, coarse: true, refuses: "OOM command not allowed", flush: true}},
	{name: "unread", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 1, apart: 2, knows: true, unread: true, restartEmpty: true, flush: true}},
	{name: "copy-back", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, coarse: true, reconnect: true, copyBack: true, flush: true}},
	{name: "fresh-extends", scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 1, apart: 3, fresh: true, genesis: true, coarse: true, extend: true, flush: true}},
	{name: "clock-back", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, coarse: true, back: true, flush: true}},
	{name: "readonly", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, coarse: true, refuses: "READONLY You can't write against a read only replica.", restartEmpty: true, flush: true}},
	{name: "misconf", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, fresh: true, genesis: true, coarse: true, refuses: "MISCONF Redis is configured to save RDB snapshots", flush: true}},
	{name: "follow", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 3, apart: 2, knows: true, coarse: true, reconnect: true, follow: true, flush: true}},
	{name: "clock-ahead", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 4, knows: true, coarse: true, ahead: true, flush: true}},
	{name: "old", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, coarse: true, old: true, restartEmpty: true, flush: true, evictMark: true, redraw: true}},
	{name: "fresh-old", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, fresh: true, genesis: true, coarse: true, old: true, flush: true, evictMark: true}},
	{name: "hold-several", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, hold: 4, several: true, coarse: true, restartEmpty: true, flush: true, evictMark: true}},
	{name: "fresh-several", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 1, apart: 2, fresh: true, genesis: true, hold: 4, several: true, coarse: true, flush: true}},
	{name: "extends", scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 2, apart: 3, knows: true, coarse: true, extend: true, restartEmpty: true, flush: true}},
	{name: "extends-hold", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, hold: 3, coarse: true, extend: true, restartEmpty: true, flush: true, evictMark: true}},
	{name: "extends-names", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, coarse: true, extend: true, names: true, flush: true}},
	{name: "three", scope: xScope{tick: sec, ttl: 2, clients: 3, faults: 3, apart: 2, knows: true, coarse: true, newcomers: true, extend: true, restartEmpty: true, restartOld: true, flush: true, evictMark: true}},
	{name: "three-hold", scope: xScope{tick: sec, ttl: 2, clients: 3, faults: 1, apart: 2, fresh: true, genesis: true, hold: 3, coarse: true, flush: true, evictMark: true}},
	{name: "twins", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, coarse: true, twins: true, names: true, restartEmpty: true, flush: true}},
	{name: "fresh-twins", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, fresh: true, genesis: true, coarse: true, twins: true, names: true, flush: true}},
	{name: "looks", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, coarse: true, looks: true, restartEmpty: true, flush: true, evictMark: true}},
	{name: "fresh-looks", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 1, apart: 2, fresh: true, genesis: true, coarse: true, looks: true, flush: true, evictMark: true}},
	// The rule without one of its clauses has two holders in each of these.
	{name: "fresh-min", clauses: map[xClause]int{xAge: 1000, xTwice: 20_000}, scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 1, apart: 3, fresh: true, genesis: true, coarse: true, lean: true, flush: true}},
	{name: "away-min", clauses: map[xClause]int{xAllNodes: 3000, xNewFor: 5000}, scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 1, apart: 3, first: true, genesis: true, coarse: true, lean: true, flush: true}},
	{name: "names-min", clauses: map[xClause]int{xServersDiffer: 60_000}, scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 2, apart: 3, first: true, genesis: true, names: true, coarse: true, lean: true, flush: true}},
	{name: "kept", clauses: map[xClause]int{xLater: 100_000}, scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 3, apart: 2, knows: true, coarse: true, lean: true, restartEmpty: true, restartKept: true}},
	{name: "tool", clauses: map[xClause]int{xSize: 30_000}, scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 3, apart: 3, fresh: true, genesis: true, coarse: true, lean: true, tool: true, flush: true}},
	{name: "stay-ahead", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 3, apart: 4, stay: true, coarse: true, lean: true, tool: true, ahead: true, restartEmpty: true}},
	{name: "denied-promoted", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, coarse: true, deny: true, promote: true}},
	// A change is dated by the mark. Clients are idle, or have looked a tick ago; clocks are set forward after a loss.
	{name: "idle-losses", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, rested: true, idle: 1, coarse: true, restartEmpty: true, restartKept: true, restartOld: true, promote: true, flush: true, evictMark: true, copyBack: true}},
	{name: "idle-redraw", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, rested: true, idle: 1, coarse: true, restartEmpty: true, restartKept: true, promote: true, flush: true, redraw: true}},
	{name: "bare-looks", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, bare: true, coarse: true, restartEmpty: true, restartKept: true, restartOld: true, promote: true, flush: true, evictMark: true, redraw: true}},
	{name: "rested-ahead", clauses: map[xClause]int{xOldClock: 100_000}, scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 3, apart: 4, stay: true, rested: true, coarse: true, lean: true, tool: true, ahead: true, restartEmpty: true}},
	{name: "rested-ahead-2", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 3, apart: 4, stay: true, rested: true, coarse: true, lean: true, tool: true, ahead: true, flush: true, promote: true, copyBack: true}},
	{name: "ahead-asked-first", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 3, apart: 4, stay: true, rested: true, idle: 1, coarse: true, lean: true, tool: true, ahead: true, restartEmpty: true, flush: true}},
	{name: "ahead-asked-last", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 3, apart: 4, stay: true, rested: true, idle: 2, coarse: true, lean: true, tool: true, ahead: true, restartEmpty: true, flush: true}},
	{name: "hold-promote", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, stay: true, rested: true, hold: 3, several: true, coarse: true, restartOld: true, restartKept: true, promote: true, redraw: true, copyBack: true}},
	{name: "tools-3", scope: xScope{tick: sec, ttl: 2, clients: 3, faults: 3, apart: 2, stay: true, rested: true, coarse: true, tool: true, restartEmpty: true, promote: true, flush: true}},
	{name: "moved-once", clauses: map[xClause]int{xOlder: 60_000, xChange: 60_000}, scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 1, apart: 3, stay: true, rested: true, coarse: true, names: true, outside: true}},
	{name: "same-run-id", clauses: map[xClause]int{xStart: 60_000}, scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, rested: true, coarse: true, restartSame: true, restartEmpty: true, redraw: true}},
	// Copies of any age are put back into running processes, which count that.
	{name: "counts", clauses: map[xClause]int{xPuts: 60_000, xPutsOften: 60_000}, scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, rested: true, prompt: true, newcomers: true, coarse: true, copies: true}},
	{name: "counts-stay", clauses: map[xClause]int{xPuts: 60_000, xPutsOften: 60_000}, scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, stay: true, rested: true, prompt: true, coarse: true, copies: true}},
	{name: "counts-asked", clauses: map[xClause]int{xPutsBehind: 60_000}, scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, rested: true, newcomers: true, bare: true, coarse: true, copies: true, copied: true, across: true}},
	{name: "counts-three", scope: xScope{tick: sec, ttl: 2, clients: 3, faults: 2, apart: 2, knows: true, rested: true, prompt: true, newcomers: true, coarse: true, copies: true, copied: true}},
	{name: "counts-extends", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 1, apart: 2, knows: true, rested: true, prompt: true, coarse: true, extend: true, copies: true}},
	{name: "counts-losses", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, rested: true, prompt: true, coarse: true, copies: true, copied: true, restartEmpty: true, restartKept: true, restartOld: true, promote: true, flush: true, evictMark: true, redraw: true, copyBack: true}},
	{name: "counts-hold", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, rested: true, prompt: true, hold: 3, coarse: true, copies: true, copied: true}},
	{name: "counts-hold-several", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, stay: true, rested: true, prompt: true, hold: 3, several: true, coarse: true, copies: true, copied: true}},
	{name: "counts-swap", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, rested: true, prompt: true, newcomers: true, coarse: true, copies: true, copied: true, swap: true}},
	{name: "counts-names", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, rested: true, coarse: true, names: true, copies: true, copied: true}},
	{name: "counts-clocks", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 4, knows: true, rested: true, newcomers: true, coarse: true, copies: true, copied: true, back: true, ahead: true}},
	{name: "counts-fresh", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 1, apart: 2, fresh: true, genesis: true, coarse: true, copies: true, flush: true}},
	{name: "counts-back-and-redraw", clauses: map[xClause]int{xPuts: 60_000}, scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, rested: true, coarse: true, copyBack: true, redraw: true}},
	// Beyond the promise.
	{name: "counts-rollback", beyond: true, scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 1, apart: 2, knows: true, rested: true, newcomers: true, coarse: true, copies: true, copied: true, rollback: true}},
	{name: "counts-bare-looks", beyond: true, states: 60_000, scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, stay: true, rested: true, bare: true, coarse: true, copies: true}},
	{name: "forgot-and-ahead", beyond: true, states: 60_000, scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 3, apart: 4, knows: true, coarse: true, lean: true, tool: true, ahead: true, flush: true}},
	{name: "marks-evicted", beyond: true, states: 100_000, scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 3, apart: 3, knows: true, genesis: true, coarse: true, lean: true, flush: true, evictMark: true}},
	{name: "moved", beyond: true, scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 2, apart: 3, knows: true, coarse: true, names: true, outside: true}},
	{name: "majority", beyond: true, states: 60_000, scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 2, apart: 0, first: true, genesis: true, coarse: true, lean: true, flush: true}},
}

var explorePage = flag.String("explore.page", "", "the file to which TestExplore writes what it found")

// String is what a scope allows, for the page.
func (sc *xScope) String() string {
	v := reflect.ValueOf(*sc)
	var may []string
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Bool && f.Bool() {
			may = append(may, v.Type().Field(i).Name)
		}
	}
	if sc.hold > 0 {
		may = append(may, fmt.Sprintf("held up for %d", sc.hold))
	}
	if sc.refuses != "" {
		may = append(may, "refuses")
	}
	return fmt.Sprintf("TTL %v of %v, %d clients, %d faults %d apart: %s", time.Duration(sc.ttl)*sc.tick, sc.tick, sc.clients, sc.faults, sc.apart, strings.Join(may, " "))
}

const pageHead = `What TestExplore found. To write it again:

    go test ./internal/guard -run TestExplore -timeout 0 -explore.states=%d -explore.page=testdata/explorer.txt

Times are of a machine with two cores and much other work.

Three nodes, and a fourth server outside; one key; each attempt of a client in one step where "coarse" is said. In every state, once all
is quiet, each node votes for each client within the guard's period and a TTL, and the longest wait is given.
A look behind SETs brings all that the node tells of itself, or the mark alone where "bare" is said. Copies that are put back are of any age.
Where "prompt" is said, a lock that is free is had at once as long as nothing was lost.
The words are fields of xScope. That compare and set is needed is a story that is longer than the search
reaches (TestExploreStories). New fleets that are all up wait for nothing: TestFirstStartWaitsForNothing.

Not covered: more than three nodes; what is deeper than said; more than two answers of one node to one
client that are late; times between ticks; keys that are evicted with the mark still there; the queue,
fencing, and how connections end. The simulation and tests on real servers have these.

`

// writePage writes what was found of each row.
func writePage(t *testing.T, found []string) {
	if *explorePage == "" {
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, pageHead, *exploreStates)
	for i, row := range exploreRows {
		fmt.Fprintf(&b, "%s%s\n    %v\n    %s\n", row.name, map[bool]string{true: " (beyond the promise)"}[row.beyond], &row.scope, found[i])
	}
	require.NoError(t, os.WriteFile(*explorePage, []byte(b.String()), 0o644))
}
