package conn

import (
	"time"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/tick"
)

// pause is that between two questions of one kind to a node which does not answer them as it must. It is remembered for
// the node, whichever conversation asks. It grows with the age of the trouble, so that of a short one no more is left
// than a fraction of what it took. Conversations.Mu guards it.
type pause struct {
	why   error // what was answered last; nil: there is none
	since int64 // when that began
	until int64
}

const (
	leastPause = lane.MinBackoff
	mostPause  = time.Second
)

// failed begins the next one.
func (p *pause) failed(c tick.Clock, why error) {
	now := c.Now().Mono
	if p.why == nil {
		p.since = now
	}
	d := min(max(time.Duration(now-p.since)/4, leastPause), mostPause)
	p.why, p.until = why, now+int64(d/2+c.Jitter(d/2))
}

// left is for how long it goes on.
func (p *pause) left(now int64) time.Duration {
	if p.why == nil {
		return 0
	}
	return time.Duration(max(p.until-now, 0))
}

// mayAsk reports whether a node of which not all is known may be asked.
func (cs *Conversations) mayAsk() bool {
	cs.Mu.Lock()
	defer cs.Mu.Unlock()
	return cs.doubt.left(cs.clock.Now().Mono) == 0
}

// doubts notes why not all that a node's votes rest on is known; nil: it is.
func (cs *Conversations) doubts(why error) {
	cs.Mu.Lock()
	defer cs.Mu.Unlock()
	if why == nil {
		cs.doubt = pause{}
	} else {
		cs.doubt.failed(cs.clock, why)
	}
}

// refuses notes that the server does not serve us. Until it is asked again, calls that have no conversation get its
// words, and nothing is dialled.
func (cs *Conversations) refuses(why error) {
	cs.Mu.Lock()
	defer cs.Mu.Unlock()
	cs.refusal.failed(cs.clock, why)
}

// Hurry ends the pause: what is sent now is the last.
func (cs *Conversations) Hurry() {
	cs.Mu.Lock()
	defer cs.Mu.Unlock()
	cs.refusal.until = 0
}

// awaitRefusal waits until the server may be asked again.
func (cs *Conversations) awaitRefusal() {
	cs.Mu.Lock()
	left := cs.refusal.left(cs.clock.Now().Mono)
	cs.Mu.Unlock()
	if left > 0 {
		cs.sleep(left)
	}
}
