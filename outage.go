package redlock

import "sync"

// outage is whether a quorum of the nodes answers, as the lanes know it.
type outage struct {
	// asking has room for the one waiter that goes on making attempts meanwhile. Lanes
	// learn from them that their nodes are back.
	asking chan struct{}

	mu   sync.Mutex // taken under those of lanes; no other is taken under it
	most int        // so many nodes may be down
	down int
	back chan struct{} // closed when the outage is over; nil: there is none
}

func newOutage(nodes int) *outage {
	return &outage{asking: make(chan struct{}, 1), most: nodes - majority(nodes)}
}

// changed notes that a node went down or is up again.
func (o *outage) changed(down bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if down {
		o.down++
	} else {
		o.down--
	}
	switch {
	case o.down > o.most && o.back == nil:
		o.back = make(chan struct{})
	case o.down <= o.most && o.back != nil:
		close(o.back)
		o.back = nil
	}
}

// over is closed when a quorum answers again; nil if one does.
func (o *outage) over() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.back
}
