package realtest_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/faultproxy"
	"github.com/quorumlock/redlock/internal/realredis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Row 91, E7: a user may do all that a fenced acquire needs but write the counter. The
// script fails after it has set the lock, and scripts are not rolled back: the lock must be
// taken back all the same.
func TestFencedAcquireThatFailsHalfwayLeavesNothing(t *testing.T) {
	t.Parallel()
	if realredis.Major(t) < 7 {
		t.Skip("no user can have such rights before Redis 7")
	}
	f := convStart(t, 3, realredis.User("halfway", "secret", "+@all", "&*", "~warm-up", "~"+convKey, "(~* +eval +evalsha +get)"))
	rl := f.direct().users(t, redlock.Options{TTL: time.Minute, RestartGuard: -1}, func(o *redis.Options) {
		o.Username, o.Password = "halfway", "secret"
	})
	convWarm(t, f, rl)
	_, err := rl.Mutex(convKey, redlock.WithFencing()).TryAcquire(t.Context())
	require.Error(t, err)
	t.Log(err)
	require.Eventually(t, func() bool { return f.gone(convKey) }, 3*time.Second, 5*time.Millisecond, "the lock is left: %v", f.held(convKey))
}

// convRetrying is a hook of a user's client that sends a pipeline again when it broke.
type convRetrying struct{}

func (convRetrying) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (convRetrying) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (convRetrying) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) (err error) {
		for range 3 {
			err = next(ctx, cmds)
			if err == nil || errors.As(err, new(redis.Error)) {
				break
			}
			convPause(5 * time.Millisecond)
		}
		return err
	}
}

// Row 91, E5: a hook of the user's client sends a SET again whose answer was lost. It then
// finds its own key, which is no refusal by another holder: it has to be taken back.
func TestHookThatRetriesLeavesNothing(t *testing.T) {
	type retried struct {
		kind string // of the clients
		held bool   // by another client, so that the attempt fails
	}
	// go-redis v9.23 loses the hooks of a Client in WithTimeout, but not those of a Ring.
	cases := []retried{{"Client", false}, {"Client", true}, {"Ring", false}, {"Ring", true}}
	t.Parallel()
	name := func(c retried) string { return fmt.Sprintf("%s, held by another %v", c.kind, c.held) }
	convTogether(t, cases, name, func(t *testing.T, c retried) {
		f := convStart(t, 3)
		o := redlock.Options{TTL: time.Minute, RestartGuard: -1}
		holders, p := f.path(t), f.path(t)
		if c.held {
			holders.holdOn(t, holders.open(t, o), convKey, 1, 2)
		}
		clients := p.clients(t)
		for i := range clients {
			if c.kind == "Ring" {
				clients[i] = redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": p.addrs[i]}})
				t.Cleanup(func() { _ = clients[i].Close() })
			}
			clients[i].AddHook(convRetrying{})
		}
		rl, err := redlock.New(clients, &o)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, rl.Close()) })
		convWarm(t, f, rl)
		p.proxies[0].DropReply(1, faultproxy.DropCut, func(args []string) bool { return slices.Contains(args, convKey) })
		lock, err := rl.Mutex(convKey).TryAcquire(t.Context())
		require.Equal(t, c.held, err != nil, "%v", err)
		if lock != nil {
			require.NoError(t, lock.Release(t.Context()))
		}
		convEventually(t, func() bool { return p.proxies[0].CountFunc(convNames(convKey)) > 0 }, "nothing was sent")
		require.Eventually(t, func() bool { return f.held(convKey)[0] == "" }, 3*time.Second, 5*time.Millisecond, "the key is left on node 0")
	})
}

// Row 92: on nil and on zero values every method returns an error, does nothing, or panics
// with one sentence of this package; Close does nothing.
func TestNilAndZeroValues(t *testing.T) {
	t.Parallel()
	args := func(m reflect.Method) (in []reflect.Value) {
		for i := 1; i < m.Type.NumIn(); i++ {
			v := reflect.Zero(m.Type.In(i))
			switch m.Type.In(i) {
			case reflect.TypeFor[context.Context]():
				v = reflect.ValueOf(context.Background())
			case reflect.TypeFor[string]():
				v = reflect.ValueOf("key")
			case reflect.TypeFor[time.Duration]():
				v = reflect.ValueOf(time.Second)
			}
			in = append(in, v)
		}
		if m.Type.IsVariadic() {
			in = in[:len(in)-1]
		}
		return in
	}
	for name, v := range map[string]any{
		"nil Redlock": (*redlock.Redlock)(nil), "zero Redlock": new(redlock.Redlock),
		"nil Mutex": (*redlock.Mutex)(nil), "zero Mutex": new(redlock.Mutex),
		"nil Lock": (*redlock.Lock)(nil), "zero Lock": new(redlock.Lock),
		"Mutex of a nil Redlock": convMutexOf(nil), "Mutex of a zero Redlock": convMutexOf(new(redlock.Redlock)),
	} {
		typ := reflect.TypeOf(v)
		for i := range typ.NumMethod() {
			m := typ.Method(i)
			t.Run(name+"."+m.Name, func(t *testing.T) {
				if _, ok := v.(*redlock.Mutex); ok && v.(*redlock.Mutex) == nil && strings.HasPrefix(name, "Mutex of") {
					return // Mutex itself panics there, which is looked at above
				}
				out, panicked := convCall(reflect.ValueOf(v).Method(i), args(m))
				if panicked != nil {
					assert.Regexp(t, `^redlock: .`, fmt.Sprint(panicked), "a panic of the runtime")
					assert.NotEqual(t, "Close", m.Name)
					return
				}
				if n := len(out); n > 0 && m.Type.Out(n-1) == reflect.TypeFor[error]() && m.Name != "Close" {
					assert.False(t, out[n-1].IsNil(), "no error")
				}
			})
		}
	}
}

// convMutexOf is nil where Mutex panics.
func convMutexOf(rl *redlock.Redlock) (m *redlock.Mutex) {
	defer func() { _ = recover() }()
	return rl.Mutex("key")
}

func convCall(f reflect.Value, in []reflect.Value) (out []reflect.Value, panicked any) {
	defer func() { panicked = recover() }()
	return f.Call(in), nil
}
