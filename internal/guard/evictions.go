package guard

import "time"

// Servers that throw away keys because their memory is full, and with them locks that are held. The
// guard notices the loss of a memory mark, and not that of a single lock.

// evictions is what is known of the keys that one server has evicted. It is pure. In a Guard, mu guards it.
type evictions struct {
	runID  string // of the process that counts; empty: it was not asked
	count  int64  // since its start
	grewAt int64  // when the count was last seen to grow; LongAgo: never
	toldAt int64
}

const (
	// evictionsEnd is for how long no key must be evicted for a spell of evictions to be over.
	evictionsEnd = time.Minute
	// evictionsAgain is how often a spell that goes on is told of.
	evictionsAgain = time.Hour
)

// see takes in how many keys a process has evicted since its start. It returns by how many these
// are more than before, if that is to be told: once per spell, and each hour that it lasts.
func (e *evictions) see(runID string, count int64, now int64) (grown int64, tell bool) {
	before := *e
	e.runID, e.count = runID, count
	switch {
	case before.runID == "":
		e.grewAt, e.toldAt = LongAgo, LongAgo
		return 0, false
	case before.runID == runID && before.count <= count:
		grown = count - before.count
	default: // it was restarted, or its counts were reset (CONFIG RESETSTAT), since we looked
		grown = count
	}
	if grown == 0 {
		return 0, false
	}
	tell = now-before.grewAt >= int64(evictionsEnd) || now-before.toldAt >= int64(evictionsAgain)
	if e.grewAt = now; tell {
		e.toldAt = now
	}
	return grown, tell
}

const evicts = "memory: it evicts keys, so it may forget locks that are held, and nothing else shows that"
