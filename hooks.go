package redlock

import "time"

// Hooks are optional functions that are told what happens, for logs and metrics.
// They run on the goroutine of the caller whose operation ended, or on one of their
// own, never while the library holds a mutex; a slow hook delays only that caller.
// They must be safe for concurrent use.
type Hooks struct {
	// Acquired is called when TryAcquire, Acquire or Do got its lock or gave up.
	Acquired func(AcquireInfo)
	// Extended is called after each extend, by hand or by renewal.
	Extended func(ExtendInfo)
	// Released is called after the first Release of a lock.
	Released func(ReleaseInfo)
	// Lost is called once when a lock is found to be lost before it was released.
	Lost func(LostInfo)
	// NodeDown is called when a node stops answering, NodeUp when it answers again.
	NodeDown func(NodeInfo)
	NodeUp   func(NodeInfo)
	// Degraded is called once per node and feature when a node denies something that
	// the library can do without, at the price of what DegradedInfo.Lacks says.
	Degraded func(DegradedInfo)
}

// AcquireInfo tells how an acquire ended.
type AcquireInfo struct {
	Key      string
	Token    string // empty if Err is set
	Attempts int
	Elapsed  time.Duration
	Err      error
}

// ExtendInfo tells how an extend ended.
type ExtendInfo struct {
	Key, Token string
	TTL        time.Duration
	Renewal    bool // by the library itself
	Elapsed    time.Duration
	Err        error
}

// ReleaseInfo tells how a release ended.
type ReleaseInfo struct {
	Key, Token string
	Held       time.Duration // since the grant
	Elapsed    time.Duration
	Err        error
}

// LostInfo tells of a lost lock.
type LostInfo struct {
	Key, Token string
	Err        error // wraps ErrLost
}

// NodeInfo tells of a change in how a node answers.
type NodeInfo struct {
	Node string
	Err  error // what it failed with; nil for NodeUp
}

// DegradedInfo tells what goes less well on a node than it could.
type DegradedInfo struct {
	Node  string
	Lacks string // what is missing and what that means
	Err   error  // what the node said
}

// filled returns a copy in which every function may be called.
func (h *Hooks) filled() *Hooks {
	var c Hooks
	if h != nil {
		c = *h
	}
	fill(&c.Acquired)
	fill(&c.Extended)
	fill(&c.Released)
	fill(&c.Lost)
	fill(&c.NodeDown)
	fill(&c.NodeUp)
	fill(&c.Degraded)
	return &c
}

func fill[T any](f *func(T)) {
	if *f == nil {
		*f = func(T) {}
	}
}
