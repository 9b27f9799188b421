package realtest_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/quorumlock/redlock/redlocktest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// onTwo has a client hold the resource on nodes 0 and 1 of three.
func onTwo(t *testing.T, rl *redlock.Redlock, last *redis.Client) *redlock.Lock {
	t.Helper()
	require.NoError(t, last.Set(t.Context(), resource, "of another", 0).Err())
	lock := requireAcquireNow(t, rl)
	require.NoError(t, last.Del(t.Context(), resource).Err())
	return lock
}

// requireAcquireNow is requireLock on a machine that may be busy.
func requireAcquireNow(t *testing.T, rl *redlock.Redlock) (lock *redlock.Lock) {
	t.Helper()
	eventually(t, func() (ok bool) {
		var err error
		lock, err = rl.Mutex(resource).TryAcquire(t.Context())
		return err == nil
	}, "not granted")
	return lock
}

// A proxy in front of a node answers PING itself, and for a while an error of its own to INFO, while the node behind it
// starts anew and has forgotten all. A client that starts at that moment is not granted what another holds.
func TestProxyThatAnswersWhileItsNodeRestarts(t *testing.T) {
	t.Parallel()
	const hiccup = 300 * time.Millisecond
	for _, text := range []string{
		"ERR Connection refused", "ERR max requests limit exceeded", "upstream failure", "ERR no such host", "Error: Server closed the connection", "ERR upstream connect error",
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			servers := realredis.StartN(t, 3)
			p, addr := frontOf(t, servers[0])
			addrs := []string{addr, servers[1].Addr(), servers[2].Addr()}
			o := redlock.Options{TTL: 10 * time.Second, NodeTimeout: 2 * time.Second}
			a := openAt(t, addrs, o)
			held := onTwo(t, a, servers[2].Client(t))

			var over atomic.Bool
			p.say(func(_ int, words []string) remark {
				if strings.EqualFold(words[0], "INFO") && !over.Load() {
					return remark{instead: "-" + text + "\r\n"}
				}
				return remark{}
			})
			p.lost()
			require.NoError(t, servers[0].Restart())
			var clients []redis.UniversalClient
			for _, addr := range addrs {
				clients = append(clients, clientOfAddr(t, addr, ""))
			}
			b := newOn(t, o, clients...)
			mended := time.AfterFunc(hiccup, func() { over.Store(true) })
			defer mended.Stop()
			for end := time.Now().Add(hiccup + 2*time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				lock, err := b.Mutex(resource).TryAcquire(t.Context())
				if held.Validity() == 0 {
					t.Skip("the machine stood still for longer than the lease")
				}
				if err == nil {
					t.Fatalf("two holders, with %v and %v left; the votes of the second: %v; node 0 was asked:\n%s",
						held.Validity(), lock.Validity(), lock.Outcomes(), p.told())
				}
			}
			_ = held.Release(t.Context()) // one of the two forgot it
			requireAcquireNow(t, b)
		})
	}
}

// Errors that a proxy says for a while to all that is asked about a node, while the client is in use, cost its vote for as
// long as they last, and no guard's time, whatever they say.
func TestErrorsToLooksPass(t *testing.T) {
	t.Parallel()
	const hiccup = 300 * time.Millisecond
	for _, text := range drawnTexts {
		if text[0] != '-' {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			t.Cleanup(func() { time.Sleep(time.Hour) }) // virtual time stops with the test
			c := redlocktest.NewCluster(t, 3)
			var fronts []*front
			var clients []redis.UniversalClient
			for i := range 3 {
				clients = append(clients, c.Client(i, func(o *redis.Options) {
					dial := o.Dialer
					p := newFront(t, func(ctx context.Context) (net.Conn, error) { return dial(ctx, "", "") })
					o.Dialer = p.pipe
					fronts = append(fronts, p)
				}))
			}
			rl := newOn(t, redlock.Options{}, clients...)
			use := func() error { return given(rl.Mutex(resource).TryAcquire(t.Context())) }
			for range 15 { // for longer than a second
				require.NoError(t, use())
				pass(100 * time.Millisecond)
			}
			for _, p := range fronts {
				p.say(func(_ int, words []string) remark {
					if name := strings.ToUpper(words[0]); name == "INFO" || name == "TIME" || name == "GET" {
						return remark{instead: text + "\r\n"}
					}
					return remark{}
				})
			}
			failed := false
			for end := time.Now().Add(hiccup); time.Now().Before(end); pass(10 * time.Millisecond) {
				failed = use() != nil || failed
			}
			require.True(t, failed, "the look's answer does not matter")
			for _, p := range fronts {
				p.say(nil)
			}
			began := time.Now()
			for err := use(); err != nil; err = use() {
				if time.Since(began) > 9*time.Second {
					t.Fatalf("%q: barred for a guard's time: %v", text, err)
				}
				pass(time.Millisecond)
			}
			t.Logf("%q: the next grant after %v", text, time.Since(began))
		})
	}
}

// A lock is acquired, extended, waited for and released behind proxies that answer PING themselves and know no SUBSCRIBE.
func TestUseBehindProxies(t *testing.T) {
	t.Parallel()
	servers := realredis.StartN(t, 3)
	var addrs []string
	for _, s := range servers {
		_, addr := frontOf(t, s)
		addrs = append(addrs, addr)
	}
	for name, o := range map[string]redlock.Options{
		"guard and queue": {}, "no queue": {NoQueue: true}, "no guard": {NoRestartGuard: true}, "neither": {NoQueue: true, NoRestartGuard: true},
	} {
		t.Run(name, func(t *testing.T) {
			o.KeyPrefix, o.TTL, o.NodeTimeout = name+":", 10*time.Second, 2*time.Second
			opened, made := openAt(t, addrs, o), newOn(t, o, clientsOf(t, addrs...)...)
			for _, both := range [][2]*redlock.Redlock{{opened, made}, {made, opened}} {
				first := requireAcquire(t, both[0])
				require.NoError(t, first.Extend(t.Context(), 10*time.Second))
				require.ErrorIs(t, try(t, both[1]), redlock.ErrHeld)
				next := background(func() error {
					ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
					defer cancel()
					return given(both[1].Mutex(resource).Acquire(ctx))
				})
				pass(100 * time.Millisecond)
				require.NoError(t, first.Release(t.Context()))
				require.NoError(t, await(t, next))
			}
		})
	}
}
