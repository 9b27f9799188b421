package redlock

import "time"

// restFor is how long a goroutine that has nothing more to send waits before it ends. A new
// one for each batch has to grow its stack anew, which was a seventh of what an uncontended
// lock cost a client.
const restFor = 100 * time.Millisecond

// rest is where one goroutine waits for work. Its owner's mutex guards it.
type rest struct {
	work    chan bool // true: there is work; false: it is to end. It has room for one
	resting bool
	since   int64
}

// begin has the caller's goroutine rest, which it does in wait, unless another one does.
func (r *rest) begin(now int64) bool {
	if r.resting {
		return false
	}
	r.resting, r.since = true, now
	return true
}

// wait returns when there is work, or false when it is time to end. No mutex may be held.
func (r *rest) wait() bool { return <-r.work }

// wake gives work to the goroutine that rests; false if none does.
func (r *rest) wake() bool {
	if !r.resting {
		return false
	}
	r.resting = false
	r.work <- true
	return true
}

// over is when the rest of a goroutine ends; ok is false if none rests.
func (r *rest) over() (at int64, ok bool) { return r.since + int64(restFor), r.resting }

// dismiss ends the goroutine that rests.
func (r *rest) dismiss() {
	if r.resting {
		r.resting = false
		r.work <- false
	}
}
