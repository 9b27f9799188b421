package redlock

import (
	"crypto/tls"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
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

const maxKeyName = protocol.MaxKeyName

// Options configures a Redlock. Nil and the zero value mean all defaults. Open and New copy
// it, so changing it afterwards has no effect. They check it before any I/O, and report
// every broken rule in one error.
type Options struct {
	// TTL is how long a lease lasts on the nodes, unless WithTTL says otherwise.
	// Default 10s, from 10ms to 24h. Nodes get it rounded up to whole milliseconds, and
	// holders rely on it rounded down.
	TTL time.Duration

	// NodeTimeout bounds how long an operation waits for any one node. The default is a fiftieth of the lock's TTL,
	// for Extend of its ttl, but at least 5ms, at most 200ms, and at most a quarter of that TTL. If set, it is from
	// 1ms to a quarter of each TTL that it is used with.
	NodeTimeout time.Duration

	// DriftFactor is the share of the TTL that holders do not rely on, because clocks run
	// at different rates. Another 2ms are left out in any case. Default 0.01, which 0 means;
	// must not be negative. Each TTL must be longer than this share of it, 2ms and NodeTimeout
	// together.
	DriftFactor float64

	// RetryMin and RetryMax bound the random pause between two attempts of an Acquire that
	// no node can notify of its turn: during an outage of the nodes, and where no node keeps a
	// queue. The pause is at least RetryMin. Its upper limit doubles with every attempt, up to
	// RetryMax. Defaults 5ms and 500ms, where one that is not set adapts to the other; at most
	// 1h. Lead pauses for RetryMin between two terms.
	RetryMin, RetryMax time.Duration

	// KeyPrefix is put before each key on the nodes. All clients of a lock need the same
	// prefix. Default none: the Redis key is the lock's key, so that other Redlock clients
	// on the same nodes and this library exclude each other. Each prefix that was ever used has
	// a memory mark without expiry, see RestartGuard: what differs from run to run belongs in
	// the key. Below 8192 bytes, which is the most for a prefix and a key together.
	KeyPrefix string

	// Owner is a label that shows people which client holds a lock. Nodes store it behind the random token, and
	// admin.Nodes.Inspect shows it. Default "host:pid"; at most 256 bytes.
	Owner string

	// NodeNames are what the nodes are called in errors, hooks and Redlock.Nodes, in the order of the addresses
	// or clients. Each must differ from the others and have 1 to 256 bytes of UTF-8. Clients compute from the names
	// which node keeps the queue of a key. So all clients of a lock should use the same name for the same node,
	// or the order of waiters is lost: where they reach the nodes by different addresses, and with Sentinel.
	// Default: address/database; nodes of one name get "#" and their index behind it.
	NodeNames []string

	// TLS is how Open speaks TLS: with rediss:// URLs, and with all addresses that are host:port. It may trust an
	// authority of your own (RootCAs) and show a certificate (Certificates). Without a ServerName each node is
	// verified by its own host name. Open takes a copy. Default nil: rediss:// URLs speak TLS and trust what the
	// system trusts, which SSL_CERT_FILE and SSL_CERT_DIR change on Unix. redis:// URLs stay unencrypted. New ignores
	// it: its clients have settings of their own.
	TLS *tls.Config

	// RestartGuard is for how long at least a node's grants do not count after a restart, a failover, FLUSHALL or
	// anything else by which it may have forgotten locks: for the TTL of the lock, or for RestartGuard where that is
	// longer. Default 0, right where all clients of a key use one TTL; at most 24h, and the same in all clients.
	//
	// With 0, nodes that are all new count at once, also after a power failure of all. A positive value
	// covers that; a new fleet then grants nothing for so long.
	//
	// Each node keeps one key without expiry, KeyPrefix+"redlock:memory". Where it denies that, INFO, TIME or what
	// scripts need, tried on KeyPrefix+"redlock:trial", it has no vote.
	RestartGuard time.Duration

	// NoRestartGuard turns the guard off, for nodes that cannot have one, or a test suite that empties its nodes.
	// Nodes are asked for nothing but locks: they need not allow INFO or TIME, nor keep a mark. RestartGuard must be
	// 0. Default false.
	//
	// A node that forgot a lock may then grant it again at once, and a server behind two names votes twice: Open does
	// not find it. Releases are scripts, since no version is known. "redlock list --clients" and the finding
	// lists-differ do not see such programs.
	NoRestartGuard bool

	// NoQueue keeps this client out of wait queues: it uses none of their keys, and neither PUBLISH nor SUBSCRIBE.
	// Waiters look again and again, after pauses of RetryMin to RetryMax, in no order, and one that wants an exclusive
	// lock does not keep more sharers from coming in. Default false.
	//
	// With NoRestartGuard, too, exclusive locks without WithFencing need permissions for the lock's key alone.
	//
	// Clients of a key need not agree: no two hold it, and those that queue keep their order among themselves. But one
	// that does not may overtake them, and its release wakes none: they find it by a look, within twice NodeTimeout, or
	// 250ms where that is more.
	NoQueue bool

	// Hooks are called when something happens, for logs and metrics. Default none.
	Hooks *Hooks
}

// withDefaults returns a copy with the defaults filled in, or an error that names every
// broken rule.
func (o *Options) withDefaults() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	broken := c.fillLease()
	broken = append(broken, c.fillRetries()...)
	broken = append(broken, c.fillTexts()...)
	switch {
	case c.RestartGuard < 0 || c.RestartGuard > maxTTL:
		broken = append(broken, fmt.Sprintf("RestartGuard is %v: must be from 0 (each lock's TTL) to %v; NoRestartGuard turns it off", c.RestartGuard, maxTTL))
	case c.NoRestartGuard && c.RestartGuard > 0:
		broken = append(broken, fmt.Sprintf("RestartGuard is %v, and NoRestartGuard is set", c.RestartGuard))
	case c.NoRestartGuard:
		c.RestartGuard = -1 // as package guard has it
	}
	c.Hooks, c.NodeNames = c.Hooks.copied(), slices.Clone(c.NodeNames)
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

// fillTexts is about Owner and KeyPrefix.
func (o *Options) fillTexts() (broken []string) {
	if o.Owner == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		o.Owner = fmt.Sprintf("%.200s:%d", host, os.Getpid())
	}
	if len(o.Owner) > maxOwner {
		broken = append(broken, fmt.Sprintf("Owner is %d bytes long: must be at most %d", len(o.Owner), maxOwner))
	}
	if len(o.KeyPrefix) >= maxKeyName {
		broken = append(broken, fmt.Sprintf("KeyPrefix is %d bytes long: must be below %d, which is the most for it and a key together", len(o.KeyPrefix), maxKeyName))
	}
	return broken
}

// nodeTimeout is how long an operation on a lock of this TTL waits for one node.
func (o *Options) nodeTimeout(ttl time.Duration) time.Duration {
	if o.NodeTimeout > 0 {
		return o.NodeTimeout
	}
	return protocol.NodeTimeout(ttl)
}

// longestLease is the longest that a lease of a lock of this TTL may be made: a node that forgot
// it is kept from voting for no longer, whichever client comes next. Without a guard it makes
// no difference how long a lease is.
func (o *Options) longestLease(ttl time.Duration) time.Duration {
	if o.RestartGuard < 0 {
		return maxTTL
	}
	return max(ttl, o.RestartGuard)
}

// markKeyOf is the key of the nodes' memory marks; empty without a guard.
func markKeyOf(o *Options) string {
	if o.RestartGuard < 0 {
		return ""
	}
	return o.KeyPrefix + protocol.MarkKey
}

// guardText is RestartGuard in an error's text.
func guardText(d time.Duration) string {
	if d == 0 {
		return "not set"
	}
	return d.String()
}

func ttlRange(name string, ttl time.Duration) string {
	if ttl < minTTL || ttl > maxTTL {
		return fmt.Sprintf("%s is %v: must be from %v to %v", name, ttl, minTTL, maxTTL)
	}
	return ""
}

// brokenTTL checks a TTL against its range and against the other options.
func brokenTTL(name string, ttl time.Duration, o Options) (broken []string) {
	if rule := ttlRange(name, ttl); rule != "" {
		return []string{rule}
	}
	if o.NodeTimeout > ttl/4 {
		broken = append(broken, fmt.Sprintf("NodeTimeout is %v: must be at most a quarter of %s, which is %v", o.NodeTimeout, name, ttl))
	}
	if lost := tick.Allowance(ttl, o.DriftFactor) + o.nodeTimeout(ttl); lost >= ttl.Truncate(time.Millisecond) {
		broken = append(broken, fmt.Sprintf("%s is %v: must be above the drift allowance (%v of it and 2ms) and NodeTimeout, which add up to %v",
			name, ttl, o.DriftFactor, lost))
	}
	return broken
}

// LockOption changes what one Mutex asks for. What breaks a rule is reported by the Mutex's
// methods, with ErrInvalid, before any I/O.
type LockOption func(*draft)

// draft is the terms of a lock while its options are applied, and what is wrong with these.
type draft struct {
	terms
	broken []string
}

// terms are what a Mutex asks for with every lock that it acquires.
type terms struct {
	protocol.Terms
	maxHold time.Duration // 0: without end
	minHold time.Duration // 0: a release frees the lock at once
	maxWait time.Duration // of an acquire that waits; 0: as long as its context
	renew   bool
	fencing bool
	reentry bool
	shared  bool   // held together with others
	owner   string // empty: Options.Owner
	permits int    // of a semaphore: how many may hold it; 0: any number
}

// WithTTL sets how long a lease lasts on the nodes, instead of Options.TTL: from 10ms to 24h. The default of
// Options.NodeTimeout depends on it: below 10s it is shorter, and a TTL of 500ms leaves each node 10ms to answer.
func WithTTL(ttl time.Duration) LockOption {
	return func(t *draft) { t.TTL = ttl }
}

// WithRenewal makes the library extend the locks that Acquire, TryAcquire and Adopt return, every
// third of the TTL, until they are released or lost, WithMaxHold ends it, or the Redlock is closed.
// The end of the context given to the acquire does not end it, so a lock that is never released
// keeps others out for as long as the process runs. The locks of Do and Lead are always renewed, and
// Lock.Renew begins it later.
func WithRenewal() LockOption {
	return func(t *draft) { t.renew = true }
}

// WithOwner is Options.Owner for one lock: a label that shows people which client holds it or waits for
// it, such as the number of a job. It is from 1 to 256 bytes long.
func WithOwner(label string) LockOption {
	return func(t *draft) {
		t.owner = label
		if label == "" || len(label) > maxOwner {
			t.broken = append(t.broken, fmt.Sprintf("WithOwner is %d bytes long: must be from 1 to %d", len(label), maxOwner))
		}
	}
}

// WithMaxHold ends renewal and the lock's context d after the grant, so that a holder that is stuck does not keep the
// lock for ever. The context of Do's function ends with it. The lease itself still lasts until Lock.Until: the causes
// of the context's end are ErrLost and ErrExpired, but Validity and Extend ignore it. If the function returns before
// Until, Do returns what it returned; if it returns later, Do's error is ErrLost, too. Lead waits for the lock again.
// d must be positive.
func WithMaxHold(d time.Duration) LockOption {
	return func(t *draft) {
		t.maxHold = d
		if d <= 0 {
			t.broken = append(t.broken, fmt.Sprintf("WithMaxHold is %v: must be positive", d))
		}
	}
}

// WithMinHold keeps the lock from others for d from the grant, also when it is released before: Release then shortens
// the lease to what is left of d. It is for jobs that all machines start at about the same time, and that may be over
// sooner than their clocks differ: d exceeds that difference plus WithMaxWait, and stays well below the job's
// interval.
//
// d is from 10ms to 24h, and at most the TTL or Options.RestartGuard, whichever is longer (2s is always allowed, 3s
// WithFencing; any d with the guard off). Shared locks and semaphores fail with ErrInvalid. If the holder dies, or an
// extend arrives after the release, the lock may stay for up to the TTL.
func WithMinHold(d time.Duration) LockOption {
	return func(t *draft) {
		t.minHold = d
		if d < minTTL || d > maxTTL {
			t.broken = append(t.broken, fmt.Sprintf("WithMinHold is %v: must be from %v to %v", d, minTTL, maxTTL))
		}
	}
}

// WithMaxWait bounds how long Acquire, Do and Lead wait for the lock, and not the work that follows. d is
// counted from the call (for Lead, of each term), and must be positive.
//
// When the wait is over, errors.Is finds ErrHeld, ErrNoQuorum or ErrExpired, and context.DeadlineExceeded in
// each case, although the caller's own context has not ended. So test for these before DeadlineExceeded,
// which is all there is if no attempt had ended. Nothing is left on nodes that can be reached.
func WithMaxWait(d time.Duration) LockOption {
	return func(t *draft) {
		t.maxWait = d
		if d <= 0 {
			t.broken = append(t.broken, fmt.Sprintf("WithMaxWait is %v: must be positive", d))
		}
	}
}

// WithFencing gives each lock a fencing token, see Lock.Fence. All clients of a fenced key
// should use it: a resource cannot order a holder that has no token among the others.
//
// Each node keeps a counter under "{key}:fence" (key + ":fence:" if the key has a hash tag
// or a "}"), which expires 7 days after its last use. A node whose counter holds anything
// but an integer from 0 to 2^52 does not grant the lock. Acquiring takes one round trip, and
// a second one if the nodes' counters differ.
func WithFencing() LockOption { return func(t *draft) { t.fencing = true } }
