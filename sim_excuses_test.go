package redlock

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Where a rule excuses something, the excuse has a name, and its uses are counted: those without which
// the rule would have failed. Where two excuse the same, neither is counted. Of the few in
// simWhenever the checker cannot tell, and counts all uses, which their names say in the table.

const (
	exClockThereAndBack = "R7: a wall clock was past the end, and is set back"
	exForgot            = "I2: nodes of the majority have forgotten the lock"
	exNoNotices         = "wake-up: PUBLISH is denied"
	exMoved             = "order: it waited at another node before"
	exRejoined          = "order: a further attempt, and a clock is set back"
	exFreeAtCall        = "I6, release: a node was without the value at the call"
	exRefusedFirst      = "I6, release: a SET that was refused came again"
	exDoor              = "I6, held: a door was shut"
	exWithoutAtCall     = "I6, hand-over: a node was without the value at the call"
	exKeptByHand        = "I6, by whose hand: the lock is kept, or was handed over"
	exNeverHad          = "I6, by whose hand: a node never had the value"
	exSlept             = "I7, time of a call: the process slept"
	exSleeper           = "I7, progress: waits of a process that sleeps at some time"
	exNotQuiet          = "I7, progress: something went wrong less than 8 TTLs + 5 s ago"
	exCutOff            = "I7, progress, and calm plans: the process is cut off"
	exPart              = "I7, progress: held for a set that is not complete"
	exBarred            = "I7, progress: of two nodes one does not vote"
	exLeftOver          = "I7, progress: it was handed over, or kept"
	exStrays            = "I7, progress: messages come late, twice or torn"
	exDisturbed         = "I7, progress: a process of a calm plan died, or was cut off"
	exNames             = "I7, progress: queues on several nodes"
	exHandedBack        = "I7, progress: handed over, and a clock is set back"
	exHandedOver        = "I5, at the end: handed over, and not adopted yet"
	exKept              = "I5, at the end: kept for its time"
	exStoppedLate       = "I5, at the end: a node that hung got it when its holder had stopped"
	exLastsLonger       = "I5, at the end: the node's clock was set back"
	exForgottenKey      = "I5: the node forgot it"
	exTurn              = "I5: reserved for the first in the queue"
	exForTheHeir        = "I5: it waits for one that adopts it"
	exForTheTime        = "I5: it is kept for its time"
	exAstray            = "I5: messages go astray until then"
	exSilent            = "I5: a connection went silent while its node hung"
	exHanding           = "loss: the hand-over of the lock found no majority"
	exFoundBefore       = "loss: it was put back since the round began"
	exLostBefore        = "min hold: it was lost before its release"
	exHandedLate        = "adopt: handed over when it was nearly over"
	exToldBack          = "O3: the node's clock was set back"
	exStruck            = "O3: an extend with another number struck it"
	exOtherName         = "O3: it joined by another node's name"
	exGhost             = "O1: one that had its turn alone is in the way"
	exNewcomer          = "wake-up: a newcomer has the permit"
)

// simExcuses is all of them, in the order of the table.
var simExcuses = []string{
	exClockThereAndBack, exForgot, exNoNotices, exMoved, exRejoined, exFreeAtCall, exRefusedFirst, exDoor,
	exWithoutAtCall, exKeptByHand, exNeverHad, exSlept, exSleeper, exNotQuiet, exCutOff, exPart, exBarred, exLeftOver,
	exStrays, exDisturbed, exNames, exHandedBack, exHandedOver, exKept, exStoppedLate, exLastsLonger, exForgottenKey,
	exTurn, exForTheHeir, exForTheTime, exAstray, exSilent, exHanding, exFoundBefore, exLostBefore, exHandedLate,
	exToldBack, exStruck, exOtherName, exGhost, exNewcomer,
}

var simWhenever = []string{exKeptByHand, exSleeper, exForTheHeir, exForTheTime, exAstray, exHanding, exLostBefore}

// excused counts the use of an excuse.
func (w *simWorld) excused(name string, used bool) bool {
	if used {
		w.tallies.count(name)
	}
	return used
}

// simExcuse has a lock count as taken until then.
type simExcuse struct {
	name  string
	until int64
}

// freeFor is from when on a lock that was wanted until a time was free, from the given time on but
// for excuses, and for how long it may be.
func (w *simWorld) freeFor(q simQuiet, to, free int64, cutOff bool, others ...simExcuse) (from, limit int64) {
	others = append(others, simExcuse{exNotQuiet, q.from})
	if cutOff {
		others = append(others, simExcuse{exCutOff, to})
	}
	from = free
	for _, e := range others {
		from = max(from, e.until)
	}
	if to-from > q.limit {
		return from, q.limit
	}
	for i, e := range others {
		without := free
		for j, o := range others {
			if i != j {
				without = max(without, o.until)
			}
		}
		w.excused(e.name, to-without > q.limit)
	}
	w.excused(q.why, to-from > q.usual)
	return from, q.limit
}

// tallyTable is names with uses, and the seeds with any, per 10,000 seeds.
func tallyTable(names []string, uses, seeds map[string]int, of int) string {
	var text strings.Builder
	for _, name := range names {
		whenever := ""
		if slices.Contains(simWhenever, name) {
			whenever = " (whenever it applies)"
		}
		fmt.Fprintf(&text, "\n%9.1f uses %8.1f seeds  %s%s", float64(uses[name])*1e4/float64(of), float64(seeds[name])*1e4/float64(of), name, whenever)
	}
	return text.String()
}

// simTallies counts what has a name. Several goroutines of a run do.
type simTallies struct {
	mu sync.Mutex
	of map[string]int
}

func (c *simTallies) count(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = make(map[string]int)
	}
	c.of[name]++
}
