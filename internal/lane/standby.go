package lane

import "time"

// restFor is how long a goroutine that has nothing more to send waits before it ends. A new
// one for each batch has to grow its stack anew, which was a seventh of what an uncontended
// lock cost a client.
const restFor = 100 * time.Millisecond

// standby is where one goroutine waits for work. Its owner's mutex guards it.
type standby struct {
	work    chan bool // true: there is work; false: it is to end. It has room for one
	resting bool
	since   int64
}

// begin has the caller's goroutine rest, which it does in wait, unless another one does.
func (s *standby) begin(now int64) bool {
	if s.resting {
		return false
	}
	s.resting, s.since = true, now
	return true
}

// wait returns when there is work, or false when it is time to end. No mutex may be held.
func (s *standby) wait() bool { return <-s.work }

// wake gives work to the goroutine that rests; false if none does.
func (s *standby) wake() bool {
	if !s.resting {
		return false
	}
	s.resting = false
	s.work <- true
	return true
}

// restEnd is when the rest of a goroutine ends; ok is false if none rests.
func (s *standby) restEnd() (at int64, ok bool) { return s.since + int64(restFor), s.resting }

// dismiss ends the goroutine that rests.
func (s *standby) dismiss() {
	if s.resting {
		s.resting = false
		s.work <- false
	}
}
