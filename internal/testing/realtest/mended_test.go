package realtest_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/quorumlock/redlock"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Errors that an operator mends while the program runs are waited for where the program asked to wait, and end an
// attempt of TryAcquire.

// rotation is a user of each server whose password is changed on the servers before the program learns of it.
type rotation struct {
	*fleet
	known atomic.Pointer[string]
}

func newRotation(t *testing.T) *rotation {
	t.Helper()
	r := &rotation{fleet: startFleet(t, 3)}
	r.do(t, r.all(), "ACL", "SETUSER", "app", "on", ">first", "~*", "&*", "+@all")
	r.learn("first")
	return r
}

func (r *rotation) learn(password string) { r.known.Store(&password) }

func (r *rotation) credentials() (user, password string) { return "app", *r.known.Load() }

// setUser changes the user and ends its connections, as a server does when a user is deleted.
func (r *rotation) setUser(t *testing.T, rules ...any) {
	t.Helper()
	r.do(t, r.all(), append([]any{"ACL", "SETUSER", "app"}, rules...)...)
	for i := range r.admins {
		r.proxies[i].Cut()
	}
}

// rotate changes the password under the program's feet.
func (r *rotation) rotate(t *testing.T) { t.Helper(); r.setUser(t, "resetpass", ">second") }

// until is a hook that tells of the first wait.
func firstWait() (*redlock.Hooks, <-chan struct{}) {
	waits := make(chan struct{}, 1)
	return &redlock.Hooks{Waiting: func(context.Context, redlock.WaitInfo) {
		select {
		case waits <- struct{}{}:
		default:
		}
	}}, waits
}

func TestRotatedPasswordIsWaitedFor(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*rotation) func(*redis.Options){
		"CredentialsProvider": func(r *rotation) func(*redis.Options) {
			return func(o *redis.Options) { o.CredentialsProvider = r.credentials }
		},
		"CredentialsProviderContext": func(r *rotation) func(*redis.Options) {
			return func(o *redis.Options) {
				o.CredentialsProviderContext = func(context.Context) (string, string, error) {
					user, password := r.credentials()
					return user, password, nil
				}
			}
		},
	} {
		for held, of := range map[string]func(*redlock.Redlock) locker{
			"exclusive": func(rl *redlock.Redlock) locker { return rl.Mutex(resource) },
			"shared":    func(rl *redlock.Redlock) locker { return rl.Mutex(resource).Shared() },
			"permit":    func(rl *redlock.Redlock) locker { return rl.Semaphore(resource, 2) },
		} {
			t.Run(name+", "+held, func(t *testing.T) {
				t.Parallel()
				r := newRotation(t)
				o := brisk
				var waits <-chan struct{}
				o.Hooks, waits = firstWait()
				rl := r.byDefault(t, o, change(r))
				lock, err := of(rl).TryAcquire(t.Context())
				require.NoError(t, err)

				r.rotate(t)
				require.ErrorContains(t, try(t, rl), "WRONGPASS", "TryAcquire says so at once")
				released := lock.Release(t.Context())
				acquired := background(func() error {
					lock, err := of(rl).Acquire(t.Context())
					if err == nil {
						err = lock.Release(context.Background())
					}
					return err
				})
				await(t, waits)
				r.learn("second")
				require.NoError(t, await(t, acquired))
				require.ErrorContains(t, released, "WRONGPASS")
				r.requireGone(t, resource) // what could not be released then was released later
			})
		}
	}
}

func TestLeadOutlivesWhatOperatorsDoToItsUser(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		harm, mend []any
		says       string
	}{
		"password":    {[]any{"resetpass", ">other"}, []any{">first"}, "WRONGPASS"},
		"user is off": {[]any{"off"}, []any{"on"}, "WRONGPASS"},
		"commands":    {[]any{"-@all"}, []any{"+@all"}, "NOPERM"},
		"keys":        {[]any{"resetkeys", "~other"}, []any{"~*"}, "NOPERM"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRotation(t)
			o := brisk
			hooks, waits := firstWait()
			degraded := make(chan redlock.DegradedInfo, 64)
			hooks.Degraded = func(i redlock.DegradedInfo) { degraded <- i }
			o.Hooks = hooks
			rl := r.byDefault(t, o, func(o *redis.Options) { o.Username, o.Password = "app", "first" })
			r.setUser(t, c.harm...)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			require.ErrorContains(t, promptly(t, func() error { _, err := rl.Mutex(resource).Acquire(ctx); return err }), c.says,
				"who waits with a fixed password is told at once")
			led := background(func() error {
				return rl.Mutex(resource).Lead(ctx, func(context.Context, *redlock.Lock) error { return nil })
			})
			await(t, waits)
			for i := await(t, degraded); ; i = await(t, degraded) {
				if assert.NotEmpty(t, i.Node); i.Err != nil && i.Kind == redlock.DegradedAccess {
					assert.ErrorContains(t, i.Err, c.says)
					break
				}
			}
			r.setUser(t, c.mend...)
			require.NoError(t, await(t, led))
		})
	}
}
