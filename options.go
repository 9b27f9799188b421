package redlock

import (
	"fmt"
	"math"
	"os"
	"time"
)

const (
	minTTL     = 10 * time.Millisecond
	maxTTL     = 24 * time.Hour
	defaultTTL = 10 * time.Second

	minNodeTimeout  = time.Millisecond
	defaultDrift    = 0.01
	defaultRetryMin = 5 * time.Millisecond
	defaultRetryMax = 500 * time.Millisecond
	maxRetry        = time.Hour
	maxOwner        = 256
)

// Options configures a Redlock. Nil and the zero value mean all defaults. Open and
// New copy it, so changing it afterwards has no effect. Every broken rule is reported
// in one error, before any I/O.
type Options struct {
	// TTL is how long a lease lasts on the nodes, unless WithTTL says otherwise.
	// Default 10s, from 10ms to 24h. It is rounded up to whole milliseconds on the
	// nodes and down for what the holder may rely on.
	TTL time.Duration

	// NodeTimeout bounds how long an operation waits for any one node. Default, for
	// each lock by its own TTL: TTL/50 within 5ms and 200ms, and at most TTL/4. A
	// set value must be at least 1ms and at most a quarter of the TTL it is used with.
	NodeTimeout time.Duration

	// DriftFactor is the share of the TTL that is given up to clocks that run at
	// different rates; another 2ms are always given up. Default 0.01; below 1.
	DriftFactor float64

	// RetryMin and RetryMax bound the random pause between two attempts of Acquire
	// where nobody can tell it that its turn has come: during an outage of the nodes,
	// and where no node keeps a line. Defaults 5ms and 500ms; at most 1h. The pause is
	// drawn between RetryMin and a limit that doubles with every attempt up to RetryMax.
	RetryMin, RetryMax time.Duration

	// KeyPrefix is put before each key on the nodes. Default none: the Redis key is
	// the lock's key, so that other Redlock clients on the same nodes exclude us and
	// we them. All clients of a lock need the same prefix.
	KeyPrefix string

	// Owner is a label for people, stored behind the random token and shown by
	// Inspect. Default "host:pid"; at most 256 bytes.
	Owner string

	// RestartGuard is for how long a node's grants do not count after it was restarted
	// or replaced, because it may have forgotten locks that it granted before. 0, the
	// default, means the TTL of the lock that is asked for; that is right where all
	// clients use the same TTL for a key. It suspends itself while all nodes are as young
	// as that, since then they were started for the first time. A positive value, at most
	// 24h, should be the longest TTL in use, the same in all clients; a set of nodes that
	// is started for the first time then grants nothing for so long. A negative value
	// turns the guard off. Locks with fencing have one of 3s at least, unless it is off.
	//
	// Extends and releases go on. Each new connection to a node is asked once for INFO
	// server; where a node denies that, or the client is a cluster or ring client, its
	// grants always count, and Hooks.Degraded is told. FLUSHALL is not noticed.
	RestartGuard time.Duration

	// Hooks are told what happens. Default none.
	Hooks *Hooks
}

// withDefaults returns a copy with the defaults filled in, or an error that names
// every broken rule.
func (o *Options) withDefaults() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	broken := c.fillLease()
	broken = append(broken, c.fillRetries()...)
	broken = append(broken, c.fillOwner()...)
	if c.RestartGuard > maxTTL {
		broken = append(broken, fmt.Sprintf("RestartGuard is %v: must be at most %v, negative (off) or 0 (each lock's TTL)", c.RestartGuard, maxTTL))
	}
	c.Hooks = c.Hooks.copied()
	return c, invalid("options", broken)
}

// fillLease is about the options that bound a lease: TTL, DriftFactor and NodeTimeout.
func (o *Options) fillLease() (broken []string) {
	bad := func(format string, args ...any) { broken = append(broken, fmt.Sprintf(format, args...)) }
	if o.TTL == 0 {
		o.TTL = defaultTTL
	}
	if o.DriftFactor == 0 {
		o.DriftFactor = defaultDrift
	}
	if f := o.DriftFactor; math.IsNaN(f) || f < 0 || f >= 1 {
		bad("DriftFactor is %v: must be 0 (default %v) or above 0 and below 1", f, defaultDrift)
	}
	if o.NodeTimeout < 0 || o.NodeTimeout > 0 && o.NodeTimeout < minNodeTimeout {
		bad("NodeTimeout is %v: must be 0 (default) or at least %v", o.NodeTimeout, minNodeTimeout)
	}
	// A value that is broken by itself must not make the rule about all three fail, nor
	// keep it from failing for the others.
	sane := *o
	if len(broken) > 0 {
		sane.DriftFactor, sane.NodeTimeout = defaultDrift, max(o.NodeTimeout, 0)
	}
	return append(broken, brokenTTL("TTL", o.TTL, sane)...)
}

// fillRetries is about RetryMin and RetryMax.
func (o *Options) fillRetries() (broken []string) {
	bad := func(format string, args ...any) { broken = append(broken, fmt.Sprintf(format, args...)) }
	for _, r := range []struct {
		name string
		d    time.Duration
	}{{"RetryMin", o.RetryMin}, {"RetryMax", o.RetryMax}} {
		if r.d < 0 || r.d > maxRetry {
			bad("%s is %v: must be 0 (default) or up to %v", r.name, r.d, maxRetry)
		}
	}
	if o.RetryMin > o.RetryMax && o.RetryMax > 0 {
		bad("RetryMin is %v, above RetryMax, which is %v", o.RetryMin, o.RetryMax)
	}
	// One that is left out adapts to the other.
	switch {
	case o.RetryMin == 0 && o.RetryMax == 0:
		o.RetryMin, o.RetryMax = defaultRetryMin, defaultRetryMax
	case o.RetryMin == 0:
		o.RetryMin = min(defaultRetryMin, o.RetryMax)
	case o.RetryMax == 0:
		o.RetryMax = max(defaultRetryMax, o.RetryMin)
	}
	return broken
}

func (o *Options) fillOwner() (broken []string) {
	if o.Owner == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		o.Owner = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	if len(o.Owner) > maxOwner {
		return []string{fmt.Sprintf("Owner is %d bytes long: must be at most %d", len(o.Owner), maxOwner)}
	}
	return nil
}

// nodeTimeout is how long a lock of this TTL waits for one node.
func (o *Options) nodeTimeout(ttl time.Duration) time.Duration {
	if o.NodeTimeout > 0 {
		return o.NodeTimeout
	}
	return min(ttl/4, max(5*time.Millisecond, min(200*time.Millisecond, ttl/50)))
}

func ttlRange(name string, ttl time.Duration) string {
	if ttl < minTTL || ttl > maxTTL {
		return fmt.Sprintf("%s is %v: must be from %v to %v", name, ttl, minTTL, maxTTL)
	}
	return ""
}

// brokenTTL checks a TTL against its range and against the other options in force.
func brokenTTL(name string, ttl time.Duration, o Options) (broken []string) {
	if rule := ttlRange(name, ttl); rule != "" {
		return []string{rule}
	}
	if o.NodeTimeout > ttl/4 {
		broken = append(broken, fmt.Sprintf("NodeTimeout is %v: must be at most a quarter of %s, which is %v", o.NodeTimeout, name, ttl))
	}
	if lost := allowance(ttl, o.DriftFactor) + o.nodeTimeout(ttl); lost >= ttl.Truncate(time.Millisecond) {
		broken = append(broken, fmt.Sprintf("%s is %v: must be above the drift allowance (%v of it and 2ms) and NodeTimeout, which add up to %v",
			name, ttl, o.DriftFactor, lost))
	}
	return broken
}

// LockOption adapts one Mutex. An invalid one is reported by the Mutex's methods.
type LockOption func(*terms)

// terms are what a Mutex asks of every lock that it acquires.
type terms struct {
	ttl         time.Duration
	nodeTimeout time.Duration
	maxHold     time.Duration // 0: without end
	renew       bool
	fencing     bool
	broken      []string
}

// WithTTL sets how long a lease lasts on the nodes, instead of Options.TTL: from
// 10ms to 24h. Unless Options.NodeTimeout is set, the timeout per node follows it.
func WithTTL(ttl time.Duration) LockOption {
	return func(t *terms) { t.ttl = ttl }
}

// WithRenewal makes Acquire and TryAcquire return locks that extend themselves at a
// third of the TTL until they are released or lost. Do always renews.
func WithRenewal() LockOption {
	return func(t *terms) { t.renew = true }
}

// WithMaxHold ends renewal, and the lock's context, d after the grant, so that a
// holder that is stuck does not hold for ever. d must be positive. The lease itself
// runs on to Until.
func WithMaxHold(d time.Duration) LockOption {
	return func(t *terms) {
		t.maxHold = d
		if d <= 0 {
			t.broken = append(t.broken, fmt.Sprintf("WithMaxHold is %v: must be positive", d))
		}
	}
}

// WithFencing gives each lock a fencing token, see Lock.Fence. All clients of a key that
// is fenced should use it: a holder without has no token to be told apart by.
//
// It needs a counter on the nodes, "{key}:fence" (key + ":fence:" if the key has a hash
// tag or a "}"), which outlives its last use by 7 days. If a counter holds anything but
// an integer from 0 to 2^52, that node does not grant. Acquiring takes one round trip,
// and a second one when the nodes' counters differ.
func WithFencing() LockOption { return func(t *terms) { t.fencing = true } }
