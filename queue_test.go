package redlock_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/bubble"
	"github.com/quorumlock/redlock/redlocktest"
)

// acquire acquires on all nodes.
func acquire(t *testing.T, m *redlock.Mutex) *redlock.Lock {
	t.Helper()
	l, err := m.Acquire(t.Context())
	require.NoError(t, err)
	synctest.Wait()
	return l
}

func release(t *testing.T, l *redlock.Lock) {
	t.Helper()
	require.NoError(t, l.Release(context.WithoutCancel(t.Context())))
}

// visitor is an Acquire that goes on in the background.
type visitor struct {
	lock *redlock.Lock
	err  error
	at   time.Time
	done chan struct{}
}

// visit starts an Acquire and returns when it waits, or has its lock.
func visit(ctx context.Context, m *redlock.Mutex) *visitor {
	v := &visitor{done: make(chan struct{})}
	go func() {
		v.lock, v.err = m.Acquire(ctx)
		v.at = time.Now()
		close(v.done)
	}()
	synctest.Wait()
	return v
}

// served waits for the visitor's lock.
func (v *visitor) served(t *testing.T) *redlock.Lock {
	t.Helper()
	<-v.done
	require.NoError(t, v.err)
	return v.lock
}

// A key is forgotten when nothing waits for it any more, also one that came after a key that is waited for all the
// time.
func TestOnlyKeysThatAreWaitedForAreRemembered(t *testing.T) {
	bubble.Run(t, 5, func(t *testing.T, c *redlocktest.Cluster) {
		c.Record(false)
		holder, rl := newClient(t, c), newClient(t, c)
		waitFor := func(key string) {
			held := acquire(t, holder.Mutex(key))
			next := visit(t.Context(), rl.Mutex(key))
			time.Sleep(50 * time.Millisecond)
			release(t, held)
			release(t, next.served(t))
		}
		for i := range 60 {
			waitFor("busy")
			waitFor(fmt.Sprint("once", i))
		}
		assert.Less(t, redlock.RememberedKeys(rl), 40) // refused within the last seconds
		time.Sleep(10 * time.Second)
		waitFor("last")
		assert.LessOrEqual(t, redlock.RememberedKeys(rl), 1)
	})
}

// A process that waits for thousands of keys is seldom heard of, and keeps its places all the same where
// one of its waiters has a turn or gives up, which ends what the node knew of the next time.
func TestProcessThatIsSeldomHeardOfKeepsItsPlaces(t *testing.T) {
	for name, of := range map[string]struct {
		waiters string // of that process: s
		givesUp bool   // the first
	}{
		"in a turn":      {waiters: "ss-"},
		"after a turn":   {waiters: "s-s-"},
		"without a turn": {waiters: "s-s-", givesUp: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Run(t, 5, func(t *testing.T, c *redlocktest.Cluster) {
				seldom := newClient(t, c)
				redlock.AwaitKeys(seldom, 20_000)
				held := acquire(t, newClient(t, c).Mutex("k"))
				ctx, giveUp := context.WithCancel(t.Context())
				defer giveUp()
				var all []*visitor
				for _, process := range of.waiters {
					rl := seldom
					if process != 's' {
						rl = newClient(t, c)
					}
					all = append(all, visit(ctx, rl.Mutex("k")))
					time.Sleep(time.Millisecond)
					ctx = t.Context()
				}
				time.Sleep(2 * time.Second)
				if of.givesUp {
					giveUp()
					<-all[0].done
					all = all[1:]
				}
				for _, v := range all {
					start := time.Now()
					release(t, held)
					held = v.served(t)
					require.Less(t, v.at.Sub(start), 100*time.Millisecond)
					time.Sleep(3 * time.Second)
				}
				release(t, held)
			})
		})
	}
}
