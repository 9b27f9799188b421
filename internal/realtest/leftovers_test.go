package realtest_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
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
