package realtest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stream is a provider of credentials that tells of new ones.
type stream struct {
	mu        sync.Mutex
	password  string
	listeners []auth.CredentialsListener
}

func (s *stream) Subscribe(l auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = append(s.listeners, l)
	return auth.NewBasicCredentials("app", s.password), func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if i := slices.Index(s.listeners, l); i >= 0 {
			s.listeners = slices.Delete(s.listeners, i, i+1)
		}
		return nil
	}, nil
}

func (s *stream) rotate(password string) {
	s.mu.Lock()
	s.password = password
	tell := slices.Clone(s.listeners)
	s.mu.Unlock()
	for _, l := range tell {
		l.OnNext(auth.NewBasicCredentials("app", password))
	}
}

func (s *stream) now() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.password
}

func (s *stream) listening() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.listeners)
}

// A password that changes under load: the servers take the new one, the client is told, and the old one
// is gone with each connection that was not logged in anew. All kinds of providers, all modes of holding.
func TestCredentialsRotate(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	for _, kind := range []string{"streaming", "with context", "plain"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			servers := realredis.StartN(t, 3, realredis.User("app", "pw0", "allkeys", "allchannels", "allcommands"))
			provider := &stream{password: "pw0"}
			var clients []redis.UniversalClient
			var admins []*redis.Client
			for _, s := range servers {
				admins = append(admins, s.Client(t))
				clients = append(clients, s.Client(t, func(o *redis.Options) {
					switch kind {
					case "streaming":
						o.StreamingCredentialsProvider = provider
					case "with context":
						o.CredentialsProviderContext = func(context.Context) (string, string, error) { return "app", provider.now(), nil }
					default:
						o.CredentialsProvider = func() (string, string) { return "app", provider.now() }
					}
				}))
			}
			rl, err := newOf(clients, &redlock.Options{TTL: 6 * time.Second, NodeTimeout: 1500 * time.Millisecond, NoRestartGuard: true})
			require.NoError(t, err)
			defer rl.Close()
			modes := []locker{rl.Mutex("alone"), rl.Mutex("shared").Shared(), rl.Semaphore("permits", 3)}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var held, load sync.WaitGroup
			began := make(chan struct{}, len(modes))
			for _, m := range modes {
				held.Go(func() {
					err := m.Do(t.Context(), func(of context.Context, _ *redlock.Lock) error {
						began <- struct{}{}
						select {
						case <-of.Done():
							return context.Cause(of)
						case <-ctx.Done():
							return nil
						}
					})
					assert.NoError(t, err, m.Key())
				})
				<-began
			}
			var cycles, failed atomic.Int64
			for i := range 8 {
				load.Go(func() {
					for ctx.Err() == nil {
						m := rl.Mutex(fmt.Sprint("load", i%4))
						err := m.Do(ctx, func(context.Context, *redlock.Lock) error { cycles.Add(1); return nil })
						if ctx.Err() == nil && err != nil {
							failed.Add(1)
							t.Log(err)
						}
					}
				})
			}
			for round := 1; round <= 4; round++ {
				before, after := fmt.Sprint("pw", round-1), fmt.Sprint("pw", round)
				forAll := func(args ...any) {
					for _, a := range admins {
						require.NoError(t, a.Do(t.Context(), args...).Err())
					}
				}
				forAll("ACL", "SETUSER", "app", ">"+after)
				provider.rotate(after)
				enough := cycles.Load() + 50
				eventually(t, func() bool { return cycles.Load() > enough }, "no progress after the rotation")
				forAll("ACL", "SETUSER", "app", "<"+before)
				if kind != "streaming" || round%2 == 1 { // or else those go on that were logged in anew
					forAll("CLIENT", "KILL", "USER", "app")
				}
				enough = cycles.Load() + 50
				eventually(t, func() bool { return cycles.Load() > enough }, "no progress without the old password")
			}
			cancel()
			load.Wait()
			held.Wait()
			assert.Zero(t, failed.Load())
			nodes := operator(t, rl)
			report, err := nodes.Check(t.Context())
			require.NoError(t, err)
			require.NoError(t, nodes.Close())
			assert.Less(t, report.Worst(), admin.SeverityCritical)
			if kind == "streaming" {
				assert.Positive(t, provider.listening())
				require.NoError(t, rl.Close())
				eventually(t, func() bool { return provider.listening() == 0 }, "a listener is left")
			}
		})
	}
}

// The next batch after a streaming provider's news
// logs in.
func TestOpenConnectionsLogInAnew(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 1, realredis.User("app", "pw0", "allkeys", "allchannels", "allcommands"))
	provider := &stream{password: "pw0"}
	rl := f.byDefault(t, brisk, func(o *redis.Options) { o.StreamingCredentialsProvider = provider })
	lock := requireLock(t, rl)
	require.Equal(t, []int{1}, f.counts("AUTH"))
	provider.rotate("wrong")
	require.NoError(t, lock.Extend(t.Context(), time.Minute), "a login that fails leaves the connection as it was")
	require.Equal(t, []int{2}, f.counts("AUTH"))
	f.do(t, f.all(), "ACL", "SETUSER", "app", ">pw1", "<pw0")
	provider.rotate("pw1")
	require.NoError(t, lock.Extend(t.Context(), time.Minute))
	require.NoError(t, lock.Extend(t.Context(), time.Minute))
	require.Equal(t, []int{3}, f.counts("AUTH"), "once for each change")
	require.NoError(t, lock.Release(t.Context()))
}

// loading is what a server answers that will serve in a moment.
type loading struct{}

func (loading) Error() string { return "LOADING" }
func (loading) RedisError()   {}

// A greeting that fails with what passes is repeated over the same connection, which subscribes once.
func TestGreetingsThatAreRepeatedLeaveNoSubscription(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 1, realredis.User("app", "pw0", "allkeys", "allchannels", "allcommands"))
	provider := &stream{password: "pw0"}
	var greetings atomic.Int32
	rl := f.byDefault(t, brisk, func(o *redis.Options) {
		o.StreamingCredentialsProvider = provider
		o.OnConnect = func(context.Context, *redis.Conn) error {
			if greetings.Add(1) < 4 {
				return loading{}
			}
			return nil
		}
	})
	lock, err := rl.Mutex(resource).Acquire(t.Context())
	require.NoError(t, err)
	require.NoError(t, lock.Release(t.Context()))
	require.GreaterOrEqual(t, greetings.Load(), int32(4))
	require.NoError(t, rl.Close())
	eventually(t, func() bool { return provider.listening() == 0 }, "a listener is left")
}

var errNoToken = errors.New("no token at present")

// A provider that fails is the node's error, and is asked again.
func TestProviderThatFails(t *testing.T) {
	t.Parallel()
	servers := realredis.StartN(t, 1, realredis.User("app", "pw0", "allkeys", "allchannels", "allcommands"))
	var broken atomic.Bool
	broken.Store(true)
	c := servers[0].Client(t, func(o *redis.Options) {
		o.CredentialsProviderContext = func(context.Context) (string, string, error) {
			if broken.Load() {
				return "", "", errNoToken
			}
			return "app", "pw0", nil
		}
	})
	rl, err := newOf([]redis.UniversalClient{c}, &brisk)
	require.NoError(t, err)
	defer rl.Close()
	_, err = rl.Mutex(resource).TryAcquire(t.Context())
	require.ErrorContains(t, err, errNoToken.Error())
	waiter := background(func() error {
		lock, err := rl.Mutex(resource).Acquire(context.Background())
		if err == nil {
			err = lock.Release(context.Background())
		}
		return err
	})
	broken.Store(false)
	require.NoError(t, await(t, waiter))
}

// A user that may subscribe to all channels and read no key learns no token.
func TestNoticesTellNoToken(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3)
	rl := f.direct(t, patient)
	heard := make(chan string, 100)
	for _, n := range f.admins {
		all := n.PSubscribe(t.Context(), "*")
		_, err := all.Receive(t.Context())
		require.NoError(t, err)
		go func() {
			for m := range all.Channel() {
				heard <- m.Payload
			}
		}()
		t.Cleanup(func() { _ = all.Close() })
	}
	hear := func(name string) (notice string) {
		eventually(t, func() bool { notice = <-heard; return strings.Contains(notice, name) }, "no notice to "+name)
		return notice
	}
	waits := func(key string) func() bool {
		return func() bool {
			status, err := operator(t, rl).Inspect(t.Context(), key)
			return err == nil && len(status.Waiters) == 1
		}
	}
	for kind, m := range map[string]interface {
		Acquire(context.Context) (*redlock.Lock, error)
	}{"alone": rl.Mutex("alone"), "shared": rl.Mutex("shared").Shared(), "permit": rl.Semaphore("permit", 3)} {
		held := requireAcquireOf(t, rl, kind)
		got := background(func() *redlock.Lock {
			lock, err := m.Acquire(t.Context())
			assert.NoError(t, err)
			return lock
		})
		eventually(t, waits(kind), "nobody waits")
		require.NoError(t, held.Release(t.Context()))
		lock := <-got
		assert.NotContains(t, hear(lock.Token()[:16]), lock.Token(), kind)
		require.NoError(t, lock.Release(t.Context()))
	}
}
