package redsync

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
)

// Mutex is a lock with a name on the nodes, and the state of its last Lock. As in redsync, goroutines
// that want to exclude each other need a Mutex each: Unlock and Extend are about the last Lock,
// whichever goroutine called it. Only NewMutex makes one: the methods of the zero Mutex that ask nodes fail
// with redlock.ErrInvalid.
type Mutex struct {
	rs      *Redsync
	name    string
	expiry  time.Duration
	tries   int
	delay   DelayFunc
	value   string // of WithValue
	refused []error
	held    atomic.Pointer[grant] // nil before the first Lock that succeeds
}

type grant struct {
	*redlock.Lock
	unlocked atomic.Bool
}

// random is a value of this library, a token with the owner's label behind the "@", or of redsync.
var random = regexp.MustCompile(`^([0-9a-f]{32}@|[0-9A-Za-z+/]{22}==$)`)

func tokenOf(value string) string {
	token, _, _ := strings.Cut(value, "@")
	return token
}

func (m *Mutex) refuse(format string, args ...any) {
	m.refused = append(m.refused, fmt.Errorf("redsync: %w option: "+format, append([]any{redlock.ErrInvalid}, args...)...))
}

// usable returns why no node is asked.
func (m *Mutex) usable() error {
	if m.rs == nil || m.rs.rl == nil && m.rs.err == nil {
		return fmt.Errorf("redsync: %w Mutex: only NewMutex makes one, of a Redsync that New or NewWith made", redlock.ErrInvalid)
	}
	return errors.Join(append(m.refused, m.rs.err)...)
}

func (m *Mutex) redlock(opts ...redlock.LockOption) *redlock.Mutex {
	return m.rs.rl.Mutex(m.name, append(opts, redlock.WithTTL(m.expiry))...)
}

// Name returns the name of NewMutex.
func (m *Mutex) Name() string { return m.name }

// Value returns what the key holds on the nodes since the last Lock: a random token, "@" and a label. It
// is that of WithValue before the first Lock, and empty without that.
func (m *Mutex) Value() string {
	if g := m.held.Load(); g != nil {
		return g.Token() + "@" + m.rs.opts.Owner
	}
	return m.value
}

// Until returns until when the holder may rely on the lock; the zero time before the first Lock. It is
// in the past after Unlock, and when the lock was found to be lost.
func (m *Mutex) Until() time.Time {
	if g := m.held.Load(); g != nil {
		return g.Until()
	}
	return time.Time{}
}

// TryLock is TryLockContext with context.Background.
func (m *Mutex) TryLock() error { return m.TryLockContext(context.Background()) }

// TryLockContext asks the nodes once, and does not wait for a holder. Its errors are those of
// LockContext. After an error nothing is left on nodes that can be reached.
func (m *Mutex) TryLockContext(ctx context.Context) error { return m.lock(ctx, 1) }

// Lock is LockContext with context.Background.
func (m *Mutex) Lock() error { return m.LockContext(context.Background()) }

// LockContext waits until the lock is granted, until ctx ends, or for as long as WithTries says. It
// waits in a queue, first come, first served, for a holder and for nodes that do not answer. Errors that
// no waiting can fix, such as a wrong password on a majority of the nodes, and Redsync.Close end it
// early. The lock is not renewed.
//
// It fails with *ErrTaken if another has the lock on so many nodes that the others are no majority, and
// otherwise with *ErrNodeTaken and *RedisError for each node that refused or did not answer. If ctx
// ended, or no node says why, it is ErrFailed, too. errors.Is also finds the error of ctx if that ended,
// and the library's reasons: redlock.ErrHeld, redlock.ErrNoQuorum and others. After an error nothing is
// left on nodes that can be reached, and on others the key for the expiry at most.
func (m *Mutex) LockContext(ctx context.Context) error { return m.lock(ctx, m.tries) }

func (m *Mutex) lock(ctx context.Context, tries int) error {
	if ctx == nil {
		ctx = context.Background()
	}
	if err := m.usable(); err != nil {
		return err
	}
	var lock *redlock.Lock
	var err error
	switch wait := m.wait(tries); {
	case tries < 1:
		return ErrFailed
	case tries == 1:
		lock, err = m.redlock().TryAcquire(ctx)
	case wait < longest:
		lock, err = m.redlock(redlock.WithMaxWait(wait)).Acquire(ctx)
	default:
		lock, err = m.redlock().Acquire(ctx)
	}
	if err != nil {
		return lockFailed(ctx, err)
	}
	m.held.Store(&grant{Lock: lock})
	return nil
}

const longest = 365 * 24 * time.Hour

// wait is how long the pauses between tries take together, and the last try; not above longest. That
// one makes it long enough for a lock that is free, which may take two timeouts of a node.
func (m *Mutex) wait(tries int) time.Duration {
	pauses := tries - 1
	known, sum := min(pauses, 1000), 0.0
	for i := range known {
		sum += float64(max(m.delay(i+1), time.Millisecond))
	}
	try := max(min(m.expiry/20, 400*time.Millisecond), 20*time.Millisecond, 2*m.rs.opts.NodeTimeout)
	return time.Duration(min(sum*float64(pauses)/float64(max(known, 1))+float64(try), float64(longest)))
}

// Unlock is UnlockContext with context.Background.
func (m *Mutex) Unlock() (bool, error) { return m.UnlockContext(context.Background()) }

// UnlockContext gives the lock up on every node, and returns when a majority has confirmed it, at the
// latest after the time that a node may take (with WithValue, which another connection serves, Options.NodeTimeout,
// by default a second). The end of ctx does not prevent it.
//
// It returns true if a majority confirmed it. Otherwise it returns false and an error:
// ErrLockAlreadyExpired if the lock had ended before or was never there, *ErrTaken or *ErrNodeTaken if
// another has it, *RedisError for nodes that did not answer. Whatever it returns, the lock is over. What
// was not confirmed is sent again in the background until the node answers or the key has expired, and
// a second call does not send it again; unless the lock is that of WithValue.
func (m *Mutex) UnlockContext(ctx context.Context) (bool, error) {
	if err := m.usable(); err != nil {
		return false, err
	}
	if ctx == nil {
		ctx = context.Background()
	}
	g := m.held.Load()
	switch {
	case g == nil && m.value == "", g != nil && g.unlocked.Load():
		return false, ErrLockAlreadyExpired
	case g == nil:
		taken, err := m.rs.nodes.ForceRelease(context.WithoutCancel(ctx), m.name, admin.HeldBy(tokenOf(m.value)))
		if err != nil {
			return false, unlockFailed(err, found(taken, m.rs.nodes.Quorum()))
		}
		return true, nil
	}
	if err := g.Release(ctx); err != nil {
		return false, unlockFailed(err, answers(err))
	}
	if !g.unlocked.CompareAndSwap(false, true) {
		return false, ErrLockAlreadyExpired // another goroutine was first
	}
	return true, nil
}

// Extend is ExtendContext with context.Background.
func (m *Mutex) Extend() (bool, error) { return m.ExtendContext(context.Background()) }

// ExtendContext makes the lock last for the expiry from now, and gives it back to nodes that lost it. It
// returns when a majority of the nodes has confirmed it, when ctx ends, or after the time that a node
// may take.
//
// It returns true if a majority confirmed it in time. Otherwise it returns false and an error, which is
// ErrExtendFailed if the lock is over: it was lost or unlocked, its validity has ended, or there was
// none. After any other error the lock is valid until Until as before, and its keys may last longer.
// errors.As finds *ErrTaken or *ErrNodeTaken if another has it, and *RedisError for nodes that did not
// answer.
func (m *Mutex) ExtendContext(ctx context.Context) (bool, error) {
	if err := m.usable(); err != nil {
		return false, err
	}
	if ctx == nil {
		ctx = context.Background()
	}
	g := m.held.Load()
	switch {
	case g == nil && m.value != "":
		return false, fmt.Errorf("redsync: %w: Extend of a Mutex with WithValue, whose lock is another's; a lock goes to another process by redlock's Lock.Detach and Mutex.Adopt", redlock.ErrInvalid)
	case g == nil:
		return false, ErrExtendFailed
	}
	if err := g.Extend(ctx, m.expiry); err != nil {
		return false, extendFailed(ctx, err)
	}
	return true, nil
}

// Valid is ValidContext with context.Background.
//
// Deprecated: Use Until, which asks no node.
func (m *Mutex) Valid() (bool, error) { return m.ValidContext(context.Background()) }

// ValidContext reports whether Until is in the future and a majority of the nodes has the lock. It waits
// for all nodes, for Options.NodeTimeout at most, by default a second. If no majority answered, or ctx ended
// before, it returns false and an error.
//
// Deprecated: Use Until, which asks no node.
func (m *Mutex) ValidContext(ctx context.Context) (bool, error) {
	if err := m.usable(); err != nil {
		return false, err
	}
	if ctx == nil {
		ctx = context.Background()
	}
	value, g := m.Value(), m.held.Load()
	if value == "" {
		return false, nil
	}
	status, err := m.rs.nodes.Inspect(ctx, m.name)
	if err != nil {
		return false, failed(ctx, err, answers(err))
	}
	return status.Token == tokenOf(value) && (g == nil || g.Validity() > 0), nil
}
