package guard

import "time"

// xRow is a scope in which there are never two holders; beyond: it shows what is not promised.
type xRow struct {
	name   string
	beyond bool
	states int // how many it takes to find two holders; 0: as many as the others
	scope  xScope
}

const sec = time.Second

var exploreRows = []xRow{
	{name: "evicted-mark", scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 2, apart: 3, knows: true, coarse: true, flush: true, evictMark: true}},
	{name: "redraw", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, liveness: true, coarse: true, reconnect: true, redraw: true}},
	{name: "short-1", scope: xScope{tick: sec / 2, ttl: 1, clients: 2, faults: 3, apart: 1, knows: true, coarse: true, restartEmpty: true}},
	{name: "short-2", scope: xScope{tick: sec / 2, ttl: 2, clients: 2, faults: 3, apart: 2, knows: true, coarse: true, restartEmpty: true}},
	{name: "fresh", scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 1, apart: 3, fresh: true, genesis: true, liveness: true, coarse: true, restartEmpty: true, flush: true}},
	{name: "fresh-young", scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 1, apart: 3, fresh: true, young: true, genesis: true, liveness: true, coarse: true, restartEmpty: true, flush: true}},
	{name: "fresh-2", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, fresh: true, genesis: true, coarse: true, restartEmpty: true, restartKept: true, restartOld: true, promote: true, flush: true, evictMark: true}},
	{name: "fresh-short", scope: xScope{tick: sec / 2, ttl: 1, clients: 2, faults: 2, apart: 1, fresh: true, genesis: true, coarse: true, flush: true}},
	{name: "fresh-hold", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 1, apart: 2, fresh: true, genesis: true, hold: 4, coarse: true, flush: true}},
	{name: "fresh-names", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, fresh: true, genesis: true, names: true, coarse: true, flush: true}},
	{name: "fresh-3", scope: xScope{tick: sec, ttl: 2, clients: 3, faults: 1, apart: 2, fresh: true, genesis: true, coarse: true, flush: true}},
	{name: "fresh-newcomers", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, fresh: true, genesis: true, newcomers: true, coarse: true, flush: true, evictMark: true}},
	{name: "away", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, first: true, genesis: true, liveness: true, coarse: true, restartEmpty: true, flush: true}},
	{name: "away-short", scope: xScope{tick: sec / 2, ttl: 1, clients: 2, faults: 2, apart: 1, first: true, genesis: true, coarse: true, flush: true}},
	{name: "losses-1", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 1, apart: 2, knows: true, genesis: true, coarse: true, liveness: true, restartEmpty: true, restartOld: true, promote: true, flush: true, evictMark: true, restartKept: true}},
	{name: "losses-2", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, coarse: true, restartEmpty: true, restartOld: true, promote: true, flush: true, evictMark: true}},
	{name: "losses", scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 2, apart: 3, knows: true, coarse: true, restartEmpty: true, restartOld: true, promote: true, flush: true}},
	{name: "names", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, coarse: true, names: true, restartEmpty: true, flush: true}},
	{name: "kept", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 3, apart: 2, knows: true, coarse: true, restartEmpty: true, restartKept: true}},
	{name: "losses-3clients", scope: xScope{tick: sec, ttl: 2, clients: 3, faults: 2, apart: 2, knows: true, coarse: true, restartEmpty: true, flush: true, evictMark: true}},
	{name: "hold", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, hold: 4, coarse: true, restartEmpty: true, flush: true, evictMark: true}},
	{name: "fixed", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, fixed: true, fresh: true, genesis: true, coarse: true, restartEmpty: true, flush: true, evictMark: true}},
	{name: "fine", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 1, apart: 2, knows: true, split: true, restartEmpty: true, flush: true, promote: true}},
	{name: "fresh-fine", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 1, apart: 2, fresh: true, genesis: true, split: true, hold: 3, flush: true}},
	{name: "away-back", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, first: true, genesis: true, back: true, coarse: true, lean: true, flush: true}},
	{name: "denied", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, coarse: true, deny: true, restartEmpty: true}},
	{name: "full", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, coarse: true, refuses: "OOM command not allowed", restartEmpty: true, flush: true}},
	{name: "fresh-full", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, fresh: true, genesis: true, liveness: true, coarse: true, refuses: "OOM command not allowed", flush: true}},
	{name: "unread", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 1, apart: 2, knows: true, unread: true, restartEmpty: true, flush: true}},
	{name: "copy-back", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, coarse: true, reconnect: true, copyBack: true, flush: true}},
	{name: "extends", scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 2, apart: 3, knows: true, coarse: true, extend: true, restartEmpty: true, flush: true}},
	{name: "fresh-extends", scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 1, apart: 3, fresh: true, genesis: true, coarse: true, extend: true, flush: true}},
	{name: "clock-back", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, coarse: true, back: true, liveness: true, flush: true}},
	{name: "readonly", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, coarse: true, refuses: "READONLY You can't write against a read only replica.", restartEmpty: true, flush: true}},
	{name: "misconf", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, fresh: true, genesis: true, liveness: true, coarse: true, refuses: "MISCONF Redis is configured to save RDB snapshots", flush: true}},
	{name: "follow", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 3, apart: 2, knows: true, coarse: true, reconnect: true, liveness: true, follow: true, flush: true}},
	{name: "clock-ahead", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 4, knows: true, coarse: true, ahead: true, liveness: true, flush: true}},
	{name: "old", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, coarse: true, old: true, restartEmpty: true, flush: true, evictMark: true, redraw: true}},
	{name: "fresh-old", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, fresh: true, genesis: true, coarse: true, old: true, liveness: true, flush: true, evictMark: true}},
	{name: "tool", scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 3, apart: 2, fresh: true, genesis: true, coarse: true, tool: true, flush: true}},
	// Beyond the promise. A server that denies its mark tells a newcomer only how old its process is.
	{name: "denied-promoted", beyond: true, scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 2, apart: 2, knows: true, coarse: true, deny: true, promote: true}},
	{name: "marks-evicted", beyond: true, states: 200_000, scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 3, apart: 3, knows: true, genesis: true, coarse: true, lean: true, flush: true, evictMark: true}},
	{name: "moved", beyond: true, scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 2, apart: 3, knows: true, coarse: true, names: true, outside: true}},
	{name: "majority", beyond: true, states: 60_000, scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 2, apart: 0, first: true, genesis: true, coarse: true, lean: true, flush: true}},
	// Small ones, for the clauses that are left out below.
	{name: "fresh-min", scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 1, apart: 3, fresh: true, genesis: true, coarse: true, lean: true, flush: true}},
	{name: "away-min", scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 1, apart: 3, first: true, genesis: true, coarse: true, lean: true, flush: true}},
	{name: "away-short-min", scope: xScope{tick: sec / 2, ttl: 1, clients: 2, faults: 1, apart: 1, fresh: true, genesis: true, coarse: true, lean: true, flush: true}},
	{name: "names-min", scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 2, apart: 3, first: true, genesis: true, names: true, coarse: true, lean: true, flush: true}},
	{name: "hold-min", scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 1, apart: 3, fresh: true, genesis: true, hold: 3, coarse: true, lean: true, flush: true}},
	{name: "answer-min", scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 1, apart: 3, fresh: true, genesis: true, hold: 3, coarse: true, lean: true, flush: true}},
	// The rule without one of its clauses.
	{name: "without-age", beyond: true, scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 1, apart: 3, fresh: true, genesis: true, coarse: true, lean: true, flush: true, without: xAge}},
	{name: "without-later", beyond: true, states: 60_000, scope: xScope{tick: sec, ttl: 2, clients: 2, faults: 3, apart: 2, knows: true, coarse: true, restartEmpty: true, restartKept: true, without: xLater}},
	{name: "without-all-nodes", beyond: true, scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 1, apart: 3, first: true, genesis: true, coarse: true, lean: true, flush: true, without: xAllNodes}},
	{name: "without-second-look", beyond: true, states: 20_000, scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 1, apart: 3, fresh: true, genesis: true, coarse: true, lean: true, flush: true, without: xTwice}},
	{name: "without-young-marks", beyond: true, scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 1, apart: 3, first: true, genesis: true, coarse: true, lean: true, flush: true, without: xNewFor}},
	{name: "without-the-number", beyond: true, states: 30_000, scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 3, apart: 3, fresh: true, genesis: true, coarse: true, lean: true, tool: true, flush: true, without: xSize}},
	{name: "without-different-servers", beyond: true, states: 60_000, scope: xScope{tick: sec, ttl: 3, clients: 2, faults: 2, apart: 3, first: true, genesis: true, names: true, coarse: true, lean: true, flush: true, without: xServersDiffer}},
}
