package faultproxy

import (
	"slices"
	"time"
)

// item is a chunk of bytes, or the end of the stream, on its way.
type item struct {
	data []byte
	end  Drop // not 0: how the stream ends here
	at   time.Time
}

// queue holds items in order of arrival and of delivery.
type queue struct {
	items []item
	floor time.Time     // nothing is due before this: no overtaking
	wake  chan struct{} // capacity 1; one writer waits on it
}

func (q *queue) push(it item) {
	q.atLeast(it.at)
	it.at = q.floor
	q.items = append(q.items, it)
	q.wakeUp()
}

// atLeast makes everything pushed from now on due at t or later.
func (q *queue) atLeast(t time.Time) {
	if t.After(q.floor) {
		q.floor = t
	}
}

func (q *queue) pop() item {
	it := q.items[0]
	q.items[0] = item{}
	q.items = q.items[1:]
	return it
}

// cutAfter drops the items due later than t, sparing the end of the stream if
// keepEnd, and reports whether there were any.
func (q *queue) cutAfter(t time.Time, keepEnd bool) (lost bool) {
	before := len(q.items)
	q.items = slices.DeleteFunc(q.items, func(it item) bool {
		return it.at.After(t) && !(keepEnd && it.end != 0)
	})
	return len(q.items) < before
}

func (q *queue) wakeUp() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}
