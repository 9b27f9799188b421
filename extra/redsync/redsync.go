// Package redsync has the API of github.com/go-redsync/redsync/v4 on locks of
// github.com/quorumlock/redlock. A program whose pools are clients of go-redis v9 moves over by
// changing its imports:
//
//	import (
//		"github.com/quorumlock/redlock/extra/redsync"
//		"github.com/quorumlock/redlock/extra/redsync/redis/goredis/v9"
//	)
//
//	rs := redsync.New(goredis.NewPool(client1), goredis.NewPool(client2), goredis.NewPool(client3))
//	mutex := rs.NewMutex("orders:42", redsync.WithExpiry(30*time.Second))
//	if err := mutex.LockContext(ctx); err != nil {
//		return err
//	}
//	defer mutex.UnlockContext(ctx)
//
// It has the same keys on the nodes, so programs with either of the two exclude each other. A call
// returns when a majority of the nodes has decided it, and waiters get the lock in order of arrival.
//
// This library does not promise what some options ask for, and refuses them, as it does values without
// a meaning: [WithGenValueFunc], [WithSetNXOnExtend], a [WithDriftFactor] above that of the Redsync, and
// a [WithValue] that is not random. Each method of such a Mutex that asks nodes fails before any I/O,
// with an error that names the option and the rule, and for which errors.Is finds redlock.ErrInvalid.
//
// Test errors with errors.Is and errors.As, since they wrap redsync's errors and those of the library.
package redsync

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/extra/redsync/redis"
)

// Redsync makes mutexes on a set of nodes. It is safe for use by any number of goroutines, and a
// program needs one for each set of nodes.
type Redsync struct {
	rl    *redlock.Redlock
	nodes *admin.Nodes // for what is told by a value, which no Lock of ours has
	opts  redlock.Options
	err   error // why there is no rl
}

// New makes a Redsync of the nodes that the pools lead to, with the default options of the library. It
// does no I/O. If the pools break a rule (there are none, or one is nil, there twice or no *redis.Client), each method of
// its mutexes that asks nodes returns the error of redlock.New.
//
// The library makes connections of its own to the server of each client, with the client's
// settings; redlock.New says what follows from that.
func New(pools ...redis.Pool) *Redsync { return NewWith(redlock.Options{}, pools...) }

// NewWith is New with options for all mutexes: hooks for metrics, names of the nodes, NodeTimeout
// in place of WithTimeoutFactor, DriftFactor. Options.TTL is the default of WithExpiry, and is 8 seconds
// if it is not set. redsync has no such function.
func NewWith(opts redlock.Options, pools ...redis.Pool) *Redsync {
	opts.TTL = cmp.Or(opts.TTL, 8*time.Second)
	if opts.Owner == "" { // it is a part of Mutex.Value
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		opts.Owner = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	rs := &Redsync{opts: opts}
	if rs.rl, rs.err = redlock.New(pools, &opts); rs.err == nil {
		rs.nodes, rs.err = admin.New(pools, &admin.Options{KeyPrefix: opts.KeyPrefix, NodeNames: opts.NodeNames, Timeout: opts.NodeTimeout})
	}
	return rs
}

// Close ends every Lock that waits, with redlock.ErrClosed, and closes the connections. Mutexes that
// are locked stay so until their expiry. A program need not call it: idle connections are closed after
// a minute. redsync has no such method.
func (r *Redsync) Close() error {
	if r.rl == nil { // its pools break a rule
		return nil
	}
	return cmp.Or(r.nodes.Close(), r.rl.Close())
}

// NewMutex describes the lock of a name, which is the key on the nodes, behind Options.KeyPrefix of
// NewWith, and is not empty. It does no I/O. By default the expiry is 8 seconds, and Lock waits for
// about 5 seconds.
func (r *Redsync) NewMutex(name string, options ...Option) *Mutex {
	m := &Mutex{
		rs: r, name: name, expiry: r.opts.TTL, tries: 32,
		delay: func(int) time.Duration { return rand.N(200*time.Millisecond) + 50*time.Millisecond },
	}
	for i, o := range options {
		if f, isFunc := o.(OptionFunc); o == nil || isFunc && f == nil {
			m.refuse("number %d of NewMutex is nil: must be an Option", i+1)
			continue
		}
		o.Apply(m)
	}
	return m
}

// Option changes what one Mutex asks for.
type Option interface{ Apply(*Mutex) }

// OptionFunc is an Option that is a function.
type OptionFunc func(*Mutex)

// Apply calls f.
func (f OptionFunc) Apply(m *Mutex) { f(m) }

// DelayFunc returns the pause before the try of this number. The first try has number 0 and no pause.
type DelayFunc func(tries int) time.Duration

// WithExpiry is how long the lock lasts on the nodes, from 10 milliseconds to 24 hours. Default 8
// seconds, or Options.TTL of NewWith. How long a node may take to answer depends on it: a fiftieth,
// from 5 to 200 milliseconds, unless NewWith was given a NodeTimeout.
func WithExpiry(expiry time.Duration) Option {
	return OptionFunc(func(m *Mutex) {
		if m.expiry = expiry; expiry < 10*time.Millisecond || expiry > 24*time.Hour {
			m.refuse("WithExpiry(%v): must be from 10ms to 24h", expiry)
		}
	})
}

// WithTries says how long Lock waits: as long as the pauses between so many tries take together, each of
// them at least a millisecond, and for the last try a twentieth of the expiry, from 20 to 400
// milliseconds, or two NodeTimeouts that NewWith was given. It does not say how often the nodes are
// asked, since a waiter is in a queue, and is notified when it is its turn. Of more than 1,000 pauses the
// mean of the first 1,000 counts, and a wait of more than a year has no end. Default 32. With 1 Lock is
// TryLock, and with less it returns ErrFailed.
func WithTries(tries int) Option { return OptionFunc(func(m *Mutex) { m.tries = tries }) }

// WithRetryDelay is the pause between two tries, see WithTries. Default a random one from 50 to 250
// milliseconds. A negative one is refused.
func WithRetryDelay(delay time.Duration) Option {
	return OptionFunc(func(m *Mutex) {
		if m.delay = func(int) time.Duration { return delay }; delay < 0 {
			m.refuse("WithRetryDelay(%v): must not be negative", delay)
		}
	})
}

// WithRetryDelayFunc returns the pause between two tries, see WithTries. Lock calls it for all of them
// before it asks the nodes. A nil function is refused.
func WithRetryDelayFunc(delayFunc DelayFunc) Option {
	return OptionFunc(func(m *Mutex) {
		if m.delay = delayFunc; delayFunc == nil {
			m.refuse("WithRetryDelayFunc(nil): must be a function")
		}
	})
}

// WithFailFast changes nothing: calls always return when a majority of the nodes has decided them. What
// other nodes answer later is handled in the background.
func WithFailFast(bool) Option { return OptionFunc(func(*Mutex) {}) }

// WithShufflePools changes nothing: all nodes are asked at once.
func WithShufflePools(bool) Option { return OptionFunc(func(*Mutex) {}) }

// WithValue is for a Mutex that only unlocks what another Mutex has locked, perhaps in another process or
// with redsync. v is the Value of that one, which is random; any other is refused, and "" changes
// nothing. Valid works, too. Extend fails, since two holders of one lock would not know of each other.
// Lock locks with a value of its own.
func WithValue(v string) Option {
	return OptionFunc(func(m *Mutex) {
		if m.value = v; v != "" && !random.MatchString(v) {
			m.refuse("WithValue(%.8q...): must be the Value of a Mutex of this package or of redsync: only random values tell one holder from all others", v)
		}
	})
}

// WithDriftFactor is the share of the expiry, from 0, on which the holder does not rely, because clocks
// run at different rates. It is that of NewWith's options, by default 0.01, and another 2 milliseconds.
// A smaller factor changes nothing, and a greater one is refused.
func WithDriftFactor(factor float64) Option {
	return OptionFunc(func(m *Mutex) {
		if has := cmp.Or(m.rs.opts.DriftFactor, 0.01); !(factor >= 0 && factor <= has) {
			m.refuse("WithDriftFactor(%v): must be from 0 to %v, which holds for all mutexes; set a greater one by NewWith and redlock.Options.DriftFactor", factor, has)
		}
	})
}

// WithTimeoutFactor changes nothing: how long a node may take is set for all mutexes, by NewWith and
// redlock.Options.NodeTimeout. The default is a fiftieth of the expiry, from 5 to 200 milliseconds, so a
// node that needs longer, which redsync's 0.05 may allow, does not vote in time. A negative factor is
// refused.
func WithTimeoutFactor(factor float64) Option {
	return OptionFunc(func(m *Mutex) {
		if !(factor >= 0) {
			m.refuse("WithTimeoutFactor(%v): must not be negative", factor)
		}
	})
}

// WithGenValueFunc is refused: each attempt has a random token of its own, or the release of an earlier
// attempt that arrives late would delete the keys of a later one.
func WithGenValueFunc(func() (string, error)) Option {
	return OptionFunc(func(m *Mutex) {
		m.refuse("WithGenValueFunc: each attempt has a random token of its own, or a release that arrives late would delete the keys of a later attempt")
	})
}

// WithSetNXOnExtend is refused: a lock that a majority of the nodes does not have any more may have been
// another's in the meantime. Without it, a successful Extend gives the lock back to a minority of nodes
// that lost it.
func WithSetNXOnExtend() Option {
	return OptionFunc(func(m *Mutex) {
		m.refuse("WithSetNXOnExtend: a lock that a majority of the nodes has no longer may have been another's meanwhile; without the option Extend gives it back to a minority that lost it")
	})
}
