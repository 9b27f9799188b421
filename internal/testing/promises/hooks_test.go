package promises_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/bubble"
	"github.com/quorumlock/redlock/internal/testing/ticktest"
	"github.com/quorumlock/redlock/redlocktest"
)

// diary writes down what hooks are told, in order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) add(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

// take returns what has come since the last take.
func (d *diary) take() string {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	s := strings.Join(d.lines, "\n")
	d.lines = nil
	return s
}

// short is an error in few words.
func short(err error) string {
	var words []string
	for _, e := range []error{redlock.ErrHeld, redlock.ErrNoQuorum, redlock.ErrExpired, redlock.ErrNotHeld, redlock.ErrLost, redlock.ErrReleased} {
		if err != nil && strings.Contains(err.Error(), e.Error()) {
			words = append(words, e.Error())
		}
	}
	if err != nil && words == nil {
		return "error"
	}
	return strings.Join(words, "+")
}

func (d *diary) hooks(token *string) *redlock.Hooks {
	known := func(t string) string {
		if t != "" && *token != "" && t != *token {
			return "wrong token"
		}
		return fmt.Sprint(t != "")
	}
	return &redlock.Hooks{
		Acquired: func(_ context.Context, i redlock.AcquireInfo) {
			d.add("acquired %s token:%s attempts:%d in %v %s", i.Key, known(i.Token), i.Attempts, i.Elapsed, short(i.Err))
		},
		Extended: func(_ context.Context, i redlock.ExtendInfo) {
			d.add("extended %s token:%s ttl:%v renewal:%v in %v %s", i.Key, known(i.Token), i.TTL, i.Renewal, i.Elapsed, short(i.Err))
		},
		Released: func(_ context.Context, i redlock.ReleaseInfo) {
			d.add("released %s token:%s held:%v in %v %s", i.Key, known(i.Token), i.Held, i.Elapsed, short(i.Err))
		},
		Lost: func(_ context.Context, i redlock.LostInfo) {
			d.add("lost %s token:%s %s", i.Key, known(i.Token), short(i.Err))
		},
		NodeDown: func(i redlock.NodeInfo) { d.add("down %s %s", i.Node, short(i.Err)) },
		NodeUp:   func(i redlock.NodeInfo) { d.add("up %s %s", i.Node, short(i.Err)) },
	}
}

func TestHooksAreToldWhatHappens(t *testing.T) {
	var d diary
	var token string
	inBubble(t, 3, &redlock.Options{Hooks: d.hooks(&token), RetryMin: time.Second, RetryMax: time.Second, RestartGuard: 20 * time.Second}, func(b *bed) {
		lock := b.lock(redlock.WithRenewal())
		token = lock.Token()
		assert.Equal(b, "acquired orders:42 token:true attempts:1 in 0s ", d.take())
		require.NoError(b, lock.Extend(b.Context(), 20*time.Second))
		assert.Equal(b, "extended orders:42 token:true ttl:20s renewal:false in 0s ", d.take())
		b.pass(ttl / 3)
		assert.Equal(b, "extended orders:42 token:true ttl:10s renewal:true in 0s ", d.take())
		b.try()
		assert.Equal(b, "acquired orders:42 token:false attempts:1 in 0s held by another", d.take())
		b.pass(5*time.Second - ttl/3)
		d.take()
		require.NoError(b, lock.Release(b.Context()))
		assert.Equal(b, "released orders:42 token:true held:5s in 0s ", d.take())
		require.NoError(b, lock.Release(b.Context()))
		assert.Error(b, lock.Extend(b.Context(), ttl))
		assert.Equal(b, "extended orders:42 token:true ttl:10s renewal:false in 0s lock released", d.take())

		token = ""
		b.each([]int{0, 1, 2}, taken)
		done := later(func() (*redlock.Lock, error) { return b.rl.Mutex(key).Acquire(b.Context()) })
		b.pass(2500 * time.Millisecond)
		assert.Empty(b, d.take(), "not after each attempt")
		b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.Del(key) })
		lock = (<-done).lock
		assert.Contains(b, d.take(), "acquired orders:42 token:true attempts:2 in ")
		b.pass(ttl)
		assert.Empty(b, d.take(), "nobody has looked")
		require.Error(b, lock.Extend(b.Context(), ttl))
		assert.Equal(b, "lost orders:42 token:true validity is over+lock lost\n"+
			"extended orders:42 token:true ttl:10s renewal:false in 0s validity is over+lock lost", d.take())
		require.Error(b, lock.Extend(b.Context(), ttl))
		assert.NotContains(b, d.take(), "lost orders", "once")

		lock = b.lock()
		lock.Context()
		d.take()
		b.each([]int{0, 1, 2}, gone)
		require.Error(b, lock.Release(b.Context()))
		assert.Equal(b, "released orders:42 token:true held:0s in 0s not held", d.take())
		lock = b.lock()
		lock.Context()
		d.take()
		b.pass(valid)
		assert.Equal(b, "lost orders:42 token:true validity is over+lock lost", d.take(), "by the context's timer")
	})
}

func TestHooksAreToldOfNodes(t *testing.T) {
	var d diary
	var token string
	inBubble(t, 3, &redlock.Options{Hooks: d.hooks(&token)}, func(b *bed) {
		b.cycle()
		d.take()
		nodes := func() string {
			lines := strings.Split(d.take(), "\n")
			lines = slices.DeleteFunc(lines, func(l string) bool { return !strings.HasPrefix(l, "down") && !strings.HasPrefix(l, "up") })
			return strings.Join(lines, "; ")
		}
		b.cluster.Node(1).Hang()
		for range 3 {
			b.cycle()
			b.pass(nodeTimeout)
		}
		assert.Equal(b, "down "+b.rl.Nodes()[1]+" error", nodes())
		b.cluster.Node(1).Resume()
		assert.Equal(b, "up "+b.rl.Nodes()[1]+" ", nodes())
		b.cluster.Node(2).Stop()
		for range 3 {
			b.cycle()
			b.pass(time.Second)
		}
		assert.Equal(b, "down "+b.rl.Nodes()[2]+" error", nodes())
		b.cluster.Node(2).Restart(redlocktest.KeepKeys)
		b.cycle()
		b.pass(time.Second)
		assert.Equal(b, "up "+b.rl.Nodes()[2]+" ", nodes())
	})
}

// Hooks may call the library: no mutex is held while they run.
func TestHooksMayCallBack(t *testing.T) {
	var (
		rl    *redlock.Redlock
		locks sync.Map // by token
		calls = map[string]int{}
		mu    sync.Mutex
	)
	use := func(b *bed, hook, token string) {
		mu.Lock()
		calls[hook]++
		n := calls[hook]
		mu.Unlock()
		_ = rl.Nodes()
		if l, ok := locks.Load(token); ok {
			lock := l.(*redlock.Lock)
			lock.Validity()
			lock.Until()
			lock.Outcomes()
			lock.Context()
			_ = lock.Release(b.Context())
		}
		if n < 3 {
			if lock, err := rl.Mutex(hook).TryAcquire(b.Context()); err == nil {
				_ = lock.Extend(b.Context(), ttl)
				_ = lock.Release(b.Context())
			}
		}
	}
	var b *bed
	hooks := &redlock.Hooks{
		Acquired: func(_ context.Context, i redlock.AcquireInfo) { use(b, "acquired", i.Token) },
		Extended: func(_ context.Context, i redlock.ExtendInfo) { use(b, "extended", "") },
		Released: func(_ context.Context, i redlock.ReleaseInfo) { use(b, "released", i.Token) },
		Lost:     func(_ context.Context, i redlock.LostInfo) { use(b, "lost", i.Token) },
		NodeDown: func(redlock.NodeInfo) { use(b, "down", "") },
		NodeUp:   func(redlock.NodeInfo) { use(b, "up", "") },
	}
	inBubble(t, 3, &redlock.Options{Hooks: hooks}, func(bb *bed) {
		b, rl = bb, bb.rl
		for _, loseBy := range []func(*redlock.Lock){
			func(l *redlock.Lock) { b.pass(ttl); _ = l.Extend(b.Context(), ttl) },
			func(l *redlock.Lock) {
				b.each([]int{0, 1, 2}, gone)
				_ = l.Extend(b.Context(), ttl)
			},
			func(l *redlock.Lock) { <-l.Context().Done() },
			func(l *redlock.Lock) { assert.NoError(b, l.Release(b.Context())) },
		} {
			lock := b.lock()
			locks.Store(lock.Token(), lock)
			loseBy(lock)
			b.pass(time.Second)
		}
		b.cluster.Node(0).Hang()
		b.lockOf("x")
		b.pass(time.Second)
		b.cluster.Node(0).Resume()
		b.pass(time.Second)
		mu.Lock()
		defer mu.Unlock()
		assert.Len(b, calls, 6, "every hook was called: %v", calls)
	})
}

// journal keeps what a hook was told.
type journal[T any] struct {
	mu  sync.Mutex
	all []T
	ctx context.Context // of the latest
}

func (j *journal[T]) add(ctx context.Context, info T) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.all, j.ctx = append(j.all, info), ctx
}

// last returns the latest, once everything is at rest.
func (j *journal[T]) last() T {
	synctest.Wait()
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.all[len(j.all)-1]
}

type requestID struct{}

// What traces and metrics need: whose call it was, when it began, and what the nodes said.
func TestHooksAreToldWhoAndWhen(t *testing.T) {
	var (
		acquired journal[redlock.AcquireInfo]
		extended journal[redlock.ExtendInfo]
		released journal[redlock.ReleaseInfo]
		lost     journal[redlock.LostInfo]
	)
	hooks := &redlock.Hooks{Acquired: acquired.add, Extended: extended.add, Released: released.add, Lost: lost.add}
	inBubble(t, 3, &redlock.Options{Hooks: hooks, RestartGuard: 20 * time.Second}, func(b *bed) {
		with := func(id string) context.Context { return context.WithValue(b.Context(), requestID{}, id) }
		id := func(ctx context.Context) any { return ctx.Value(requestID{}) }

		ctx, cancel := context.WithCancel(with("acquire"))
		lock, err := b.rl.Mutex(key, redlock.WithRenewal()).Acquire(ctx)
		require.NoError(b, err)
		cancel()
		a := acquired.last()
		assert.Equal(b, "acquire", id(acquired.ctx))
		assert.True(b, a.Start.Equal(time.Now()))
		assert.Zero(b, a.Waited)
		assert.True(b, a.WaitStart.IsZero())
		assert.True(b, a.Until.Equal(lock.Until()))
		require.Len(b, a.Outcomes, 3)
		for i, o := range a.Outcomes {
			assert.Equal(b, b.rl.Nodes()[i], o.Node)
		}
		assert.GreaterOrEqual(b, strings.Count(votes(a.Outcomes), "granted"), 2)

		b.pass(time.Second)
		require.NoError(b, lock.Extend(with("extend"), 20*time.Second))
		e := extended.last()
		assert.Equal(b, "extend", id(extended.ctx))
		assert.True(b, e.Start.Equal(time.Now()))
		assert.True(b, e.Until.Equal(lock.Until()))
		assert.GreaterOrEqual(b, strings.Count(votes(e.Outcomes), "granted"), 2)

		b.pass(ttl / 3)
		e = extended.last()
		require.True(b, e.Renewal)
		assert.Equal(b, "acquire", id(extended.ctx), "nobody called it: the acquire's values")
		assert.NoError(b, extended.ctx.Err(), "but not its end")

		waiting := later(func() (*redlock.Lock, error) { return b.rl.Mutex(key).Acquire(with("next")) })
		b.pass(2 * time.Second)
		require.NoError(b, lock.Release(with("release")))
		r := released.last()
		assert.Equal(b, "release", id(released.ctx))
		assert.True(b, r.Start.Equal(time.Now()))
		assert.GreaterOrEqual(b, strings.Count(votes(r.Outcomes), "granted"), 2)
		next := (<-waiting).lock
		a = acquired.last()
		assert.Equal(b, "next", id(acquired.ctx))
		// It was told by one node, and may have asked another before that had the release.
		assert.InDelta(b, 2.05, a.Waited.Seconds(), 0.05)
		assert.True(b, a.WaitStart.Equal(a.Start))
		assert.Equal(b, a.Waited, a.Elapsed)

		b.each([]int{0, 1, 2}, gone)
		require.Error(b, next.Extend(with("extend"), ttl))
		lost.last()
		assert.Equal(b, "next", id(lost.ctx))
		assert.GreaterOrEqual(b, strings.Count(votes(extended.last().Outcomes), "refused"), 2)
		require.Error(b, next.Extend(with("extend"), ttl))
		assert.Empty(b, extended.last().Outcomes, "nobody was asked")

		b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { taken(n); n.Delay(time.Millisecond) })
		b.pass(time.Minute) // the line is forgotten
		require.Error(b, b.try(), "it connects anew")
		inVain := func() redlock.AcquireInfo {
			ctx, cancel := context.WithTimeout(with("in vain"), 3*time.Second)
			defer cancel()
			_, err := b.rl.Mutex(key).Acquire(ctx)
			require.Error(b, err)
			return acquired.last()
		}
		a = inVain()
		assert.Equal(b, 1, a.Attempts)
		assert.Equal(b, 2*time.Millisecond, a.WaitStart.Sub(a.Start), "after the first attempt")
		assert.Equal(b, 3*time.Second-2*time.Millisecond, a.Waited)
		assert.Equal(b, 3*time.Second, a.Elapsed)
		assert.True(b, a.Until.IsZero())
		assert.GreaterOrEqual(b, strings.Count(votes(a.Outcomes), "refused"), 2)
		a = inVain()
		assert.Zero(b, a.Attempts, "it went to the line at once")
		assert.Equal(b, 3*time.Second, a.Waited)
		assert.Empty(b, a.Outcomes, "of votes")
		_, err = b.rl.Mutex(key).TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrHeld)
		a = acquired.last()
		assert.Zero(b, a.Waited)
		assert.GreaterOrEqual(b, strings.Count(votes(a.Outcomes), "refused"), 2)
	})
}

// A node that flaps is told of in order, however long the hooks take: a gauge must not
// end with the wrong value.
func TestHooksAreToldOfANodeInOrder(t *testing.T) {
	var d diary
	hooks := &redlock.Hooks{
		NodeDown: func(i redlock.NodeInfo) { time.Sleep(time.Minute); d.add("down") },
		NodeUp:   func(i redlock.NodeInfo) { d.add("up") },
	}
	inBubble(t, 3, &redlock.Options{Hooks: hooks}, func(b *bed) {
		b.cycle()
		for range 3 {
			b.cluster.Node(1).Stop()
			b.cycle()
			b.pass(time.Second)
			b.cluster.Node(1).Restart(redlocktest.KeepKeys)
			b.cycle()
			b.pass(time.Second)
		}
		assert.Empty(b, d.take())
		b.pass(time.Hour)
		assert.Equal(b, "down\nup\ndown\nup\ndown\nup", d.take())
	})
}

// count makes hooks that say their name, every one that there is.
func count(d *diary, who string) *redlock.Hooks {
	var h redlock.Hooks
	v := reflect.ValueOf(&h).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		v.Field(i).Set(reflect.MakeFunc(v.Field(i).Type(), func([]reflect.Value) []reflect.Value {
			d.add("%s %s", who, name)
			return nil
		}))
	}
	return &h
}

// callAll calls every hook with nothing in particular.
func callAll(h *redlock.Hooks) {
	v := reflect.ValueOf(h).Elem()
	for i := range v.NumField() {
		if !v.Field(i).IsNil() {
			var with []reflect.Value
			for n := range v.Field(i).Type().NumIn() {
				with = append(with, reflect.Zero(v.Field(i).Type().In(n)))
			}
			v.Field(i).Call(with)
		}
	}
}

func TestJoinedHooksAreAllCalledInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		one := count(&d, "one")
		joined := redlock.JoinHooks(nil, one, &redlock.Hooks{}, count(&d, "two"), nil)
		*one = redlock.Hooks{}
		callAll(joined)
		var want []string
		for i := range reflect.TypeFor[redlock.Hooks]().NumField() {
			name := reflect.TypeFor[redlock.Hooks]().Field(i).Name
			want = append(want, "one "+name, "two "+name)
		}
		assert.Equal(t, strings.Join(want, "\n"), d.take())

		for _, none := range []*redlock.Hooks{redlock.JoinHooks(), redlock.JoinHooks(nil, &redlock.Hooks{}, nil)} {
			assert.Equal(t, &redlock.Hooks{}, none, "nil hooks cost nothing, and stay nil")
		}
	})
}

// leaves are the ways in which a hook may leave its goroutine.
var leaves = map[string]func(){
	"panic":  func() { panic("the hook's") },
	"goexit": runtime.Goexit,
}

// survive calls f as a server calls its handlers, which may panic.
func survive(f func()) (recovered any) {
	done := make(chan any)
	go func() {
		defer func() { done <- recover() }()
		f()
	}()
	return <-done
}

// Scenario 85: the caller never gets the lock, so nobody would release it, and it would be
// renewed for as long as the process lives.
func TestLockWhoseHookPanicsIsReleased(t *testing.T) {
	for name, leave := range leaves {
		t.Run(name, func(t *testing.T) {
			var released atomic.Int32
			inBubble(t, 3, &redlock.Options{Hooks: &redlock.Hooks{
				Acquired: func(context.Context, redlock.AcquireInfo) { leave() },
				Released: func(context.Context, redlock.ReleaseInfo) { released.Add(1) },
			}}, func(b *bed) {
				ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
				defer cancel()
				for what, acquire := range map[string]func(){
					"TryAcquire": func() { _, _ = b.rl.Mutex(key, redlock.WithRenewal()).TryAcquire(ctx) },
					"Acquire":    func() { _, _ = b.rl.Mutex(key, redlock.WithRenewal()).Acquire(ctx) },
					"Do": func() {
						_ = b.rl.Mutex(key).Do(ctx, func(context.Context, *redlock.Lock) error {
							b.Error("called without its lock")
							return nil
						})
					},
				} {
					before := released.Load()
					got := survive(acquire)
					assert.Equal(b, name == "panic", got == "the hook's", "%s: %v", what, got)
					b.on(0)
					assert.Equal(b, before+1, released.Load(), what)
				}
				b.cluster.ResetCommands()
				b.pass(time.Hour)
				assert.Zero(b, b.cluster.Commands(), "nothing is renewed")
			})
		})
	}
}

// A Lost or Released hook that panics while Do ends its lock leaves nothing behind either.
func TestDoReleasesWhenAHookPanics(t *testing.T) {
	for name, leave := range leaves {
		t.Run(name, func(t *testing.T) {
			for _, hooks := range []*redlock.Hooks{
				{Released: func(context.Context, redlock.ReleaseInfo) { leave() }},
				{Extended: func(context.Context, redlock.ExtendInfo) { leave() }},
			} {
				inBubble(t, 3, &redlock.Options{Hooks: hooks}, func(b *bed) {
					var inner context.Context
					survive(func() {
						_ = b.rl.Mutex(key).Do(b.Context(), func(ctx context.Context, l *redlock.Lock) error {
							inner = ctx
							return l.Extend(ctx, ttl)
						})
					})
					synctest.Wait()
					b.on(0)
					require.Error(b, inner.Err())
					b.cluster.ResetCommands()
					b.pass(time.Hour)
					assert.Zero(b, b.cluster.Commands())
				})
			}
		})
	}
}

// Do finds out itself that its lock is over where no timer came round to it.
func TestDoReleasesWhenItsLostHookPanics(t *testing.T) {
	for name, leave := range leaves {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 3, nil, func(b *bed) {
				clock := ticktest.NewFakeClock()
				rl, err := newWithClock(b.cluster.Clients(), &redlock.Options{Hooks: &redlock.Hooks{
					Lost: func(context.Context, redlock.LostInfo) { leave() },
				}}, clock)
				require.NoError(b, err)
				b.Cleanup(func() { _ = rl.Close() })
				var inner context.Context
				got := survive(func() {
					_ = rl.Mutex(key).Do(b.Context(), func(ctx context.Context, _ *redlock.Lock) error {
						inner = ctx
						clock.Stun(valid)
						return nil
					})
				})
				assert.Equal(b, name == "panic", got == "the hook's", "%v", got)
				b.on(0)
				assert.Error(b, inner.Err())
			})
		})
	}
}

// Fault 89: the release at the end of a Do is on its way before the hook is told of the loss.
func TestSlowLostHookDelaysNoRelease(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		clock, told := ticktest.NewFakeClock(), 0
		rl, err := newWithClock(b.cluster.Clients(), &redlock.Options{Hooks: &redlock.Hooks{
			Lost:     func(context.Context, redlock.LostInfo) { time.Sleep(time.Second); b.on(0); told++ },
			Released: func(context.Context, redlock.ReleaseInfo) { assert.Equal(b, 1, told) },
		}}, clock)
		require.NoError(b, err)
		b.Cleanup(func() { _ = rl.Close() })
		err = rl.Mutex(key).Do(b.Context(), func(context.Context, *redlock.Lock) error {
			b.on(5)
			clock.Stun(valid)
			return nil
		})
		assert.ErrorIs(b, err, redlock.ErrLost)
		assert.Equal(b, 1, told)
	})
}

// A NodeDown hook that ends its goroutine must not keep later changes from being told.
func TestNodeHookThatEndsItsGoroutine(t *testing.T) {
	var downs, ups atomic.Int32
	inBubble(t, 1, &redlock.Options{NoRestartGuard: true, Hooks: &redlock.Hooks{
		NodeDown: func(redlock.NodeInfo) { downs.Add(1); runtime.Goexit() },
		NodeUp:   func(redlock.NodeInfo) { ups.Add(1) },
	}}, func(b *bed) {
		b.cycle()
		b.cluster.Node(0).Stop()
		_, err := b.rl.Mutex(key).TryAcquire(b.Context())
		require.Error(b, err)
		b.cluster.Node(0).Restart(redlocktest.KeepKeys)
		b.pass(time.Second)
		b.cycle()
		assert.Equal(b, int32(1), downs.Load())
		assert.Equal(b, int32(1), ups.Load())
	})
}

// Scenario 86: many contexts end when a machine wakes up. A hook that is told of the first
// loss, and takes its time, must not let the others' holders go on.
func TestSlowLostHookDelaysNoOtherContext(t *testing.T) {
	const locks = 20
	var told atomic.Int32
	inBubble(t, 3, nil, func(b *bed) {
		clock := ticktest.NewFakeClock()
		rl, err := newWithClock(b.cluster.Clients(), &redlock.Options{Hooks: &redlock.Hooks{
			Lost: func(context.Context, redlock.LostInfo) { time.Sleep(200 * time.Millisecond); told.Add(1) },
		}}, clock)
		require.NoError(b, err)
		b.Cleanup(func() { _ = rl.Close() })
		var contexts []context.Context
		for i := range locks {
			lock, err := rl.Mutex(string(rune('a' + i))).TryAcquire(b.Context())
			require.NoError(b, err)
			contexts = append(contexts, lock.Context())
		}
		clock.Suspend(time.Hour)
		clock.Advance(250 * time.Millisecond)
		synctest.Wait() // in no time: the hooks are asleep
		for i, ctx := range contexts {
			assert.ErrorIs(b, context.Cause(ctx), redlock.ErrExpired, "lock %d", i)
		}
		b.pass(time.Second)
		assert.Equal(b, int32(locks), told.Load())
	})
}

// logbook is a slog handler's output.
type logbook struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(p)
}

func (l *logbook) take() string {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.out.Reset()
	return l.out.String()
}

func (l *logbook) logger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

func TestLogHooks(t *testing.T) {
	var book logbook
	hooks := redlock.LogHooks(book.logger(slog.LevelDebug))
	inBubble(t, 3, &redlock.Options{Hooks: hooks}, func(b *bed) {
		has := func(level, message string, attrs ...string) {
			b.Helper()
			var found string
			for line := range strings.Lines(book.take()) {
				if strings.Contains(line, "msg="+message+" ") || strings.Contains(line, `msg="`+message+`" `) {
					found = line
				}
			}
			assert.Contains(b, found, "level="+level+" ", message)
			for _, a := range attrs {
				assert.Contains(b, found, " "+a, message)
			}
		}
		b.cycle()
		book.take()
		lock := b.lock()
		has("DEBUG", "lock acquired", "key="+key, "elapsed=0s", "token="+lock.Token()[:8]+"...", "attempts=1", "until=")
		require.NoError(b, lock.Extend(b.Context(), ttl))
		has("DEBUG", "lock extended", "key="+key, "elapsed=0s", "token="+lock.Token()[:8]+"...", "ttl=10s", "renewal=false")
		b.try()
		has("DEBUG", "lock not acquired", "key="+key, "attempts=1", "err=", "held by another")
		waiting := later(func() (*redlock.Lock, error) { return b.rl.Mutex(key).Acquire(b.Context()) })
		b.pass(time.Second)
		require.NoError(b, lock.Release(b.Context()))
		has("DEBUG", "lock released", "key="+key, "held=1s")
		lock = (<-waiting).lock
		assert.Error(b, b.rl.Mutex(key).Do(deadline(b, time.Second), nil))
		book.take()
		_, err := b.rl.Mutex(key).Acquire(deadline(b, time.Second))
		require.Error(b, err)
		has("DEBUG", "lock not acquired", "waited=1s", "err=")

		b.each([]int{0, 1, 2}, gone)
		require.Error(b, lock.Extend(b.Context(), ttl))
		has("ERROR", "lock lost", "key="+key, "token="+lock.Token()[:8]+"...", "err=", "not held")
		require.Error(b, lock.Release(b.Context()))
		has("WARN", "lock not released", "err=")

		// Contention is everyday; nodes that do not answer are not.
		b.each([]int{0, 1}, stop)
		b.try()
		has("WARN", "lock not acquired", "no quorum")
		_, err = b.rl.Mutex(key).Acquire(deadline(b, time.Second))
		require.Error(b, err)
		has("WARN", "lock not acquired", "no quorum", "attempts=")

		b.cluster.Node(2).Stop()
		b.try()
		has("WARN", "redlock node down", "node="+b.rl.Nodes()[2], "err=")
		b.cluster.Node(2).Restart(redlocktest.KeepKeys)
		b.pass(time.Minute)
		b.try()
		has("INFO", "redlock node up", "node="+b.rl.Nodes()[2])
	})
}

// Ordinary contention is not worth a line. A wait that was long is, and does not fill the log,
// however many waited.
func TestLogHooksTellOfLongWaits(t *testing.T) {
	var book, details logbook
	hooks := redlock.JoinHooks(redlock.LogHooks(book.logger(slog.LevelInfo)), redlock.LogHooks(details.logger(slog.LevelDebug)))
	inBubble(t, 3, nil, func(b *bed) {
		rl := b.another(&redlock.Options{Hooks: hooks})
		for _, held := range []time.Duration{7 * time.Second, 9 * time.Second} {
			lock := b.lock(redlock.WithRenewal())
			var all []<-chan result
			for range 5 {
				all = append(all, later(func() (*redlock.Lock, error) { return rl.Mutex(key).Acquire(b.Context()) }))
				b.pass(time.Millisecond)
			}
			assert.Equal(b, 5, strings.Count(details.take(), `level=DEBUG msg="waiting for lock" key=`+key+" attempts="))
			b.pass(held)
			assert.Empty(b, book.take())
			require.NoError(b, lock.Release(b.Context()))
			for _, done := range all {
				require.NoError(b, (<-done).lock.Release(b.Context()))
			}
			if held < 8*time.Second {
				assert.Empty(b, book.take())
			}
		}
		line := book.take()
		assert.Equal(b, 1, strings.Count(line, "\n"), "one of five: %s", line)
		assert.Contains(b, line, `level=INFO msg="lock acquired" key=`+key)
		assert.Contains(b, line, "waited=9")
	})
}

func deadline(b *bed, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(b.Context(), d)
	b.Cleanup(cancel)
	return ctx
}

// What would not be written is not put together; errors name what they are about; every
// event of Hooks has its line.
func TestLogHooksLevelsAndLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var book logbook
		h := redlock.LogHooks(book.logger(slog.LevelWarn))
		h.Acquired(t.Context(), redlock.AcquireInfo{Key: "k"})
		h.Extended(t.Context(), redlock.ExtendInfo{Key: "k"})
		h.Released(t.Context(), redlock.ReleaseInfo{Key: "k"})
		h.NodeUp(redlock.NodeInfo{Node: "n"})
		h.Waiting(t.Context(), redlock.WaitInfo{Key: "k"})
		h.Acquired(t.Context(), redlock.AcquireInfo{Key: "k", Err: context.DeadlineExceeded}) // of WithMaxWait
		assert.Empty(t, book.take())
		h.Degraded(redlock.DegradedInfo{Node: "n", Lacks: "the guard", Err: redlock.ErrInvalid})
		assert.Equal(t, "level=WARN msg=\"redlock node degraded\" node=n lacks=\"the guard\" err=invalid\n", book.take())
		h.Lost(t.Context(), redlock.LostInfo{Key: strings.Repeat("k", 1<<20), Err: redlock.ErrLost})
		assert.Less(t, len(book.take()), 1000)
		for _, err := range []error{redlock.ErrReleased, redlock.ErrClosed} {
			h.Extended(t.Context(), redlock.ExtendInfo{Key: "k", Err: err})
			assert.Empty(t, book.take(), "it was our own doing")
		}
		h.Extended(t.Context(), redlock.ExtendInfo{Key: "k", Err: redlock.ErrNotHeld})
		assert.NotEmpty(t, book.take())

		v := reflect.ValueOf(*h)
		for i := range v.NumField() {
			assert.False(t, v.Field(i).IsNil(), v.Type().Field(i).Name)
		}
		defer slog.SetDefault(slog.Default())
		slog.SetDefault(book.logger(slog.LevelDebug))
		redlock.LogHooks(nil).NodeUp(redlock.NodeInfo{Node: "n"})
		assert.Contains(t, book.take(), "redlock node up")
	})
}

// votesTold makes hooks that write down which nodes vote.
func votesTold(d *diary) *redlock.Hooks {
	return &redlock.Hooks{
		NodeBarred: func(i redlock.VoteInfo) {
			until := "not known"
			if !i.Until.IsZero() {
				until = (time.Until(i.Until) + 500*time.Millisecond).String() // which it takes to be told
			}
			d.add("%s barred, %s: %v", i.Node, until, i.Err)
		},
		NodeVotes: func(i redlock.VoteInfo) {
			d.add("%s votes", i.Node)
			if i.Err != nil || !i.Until.IsZero() {
				d.add("with an error or a time")
			}
		},
	}
}

// A node that answers and has no vote is told of within a second of the answer that showed it, in its own words, and
// once more when it votes. Its lane stays open.
func TestHooksAreToldWhichNodesVote(t *testing.T) {
	for name, c := range map[string]struct {
		fault, mend func(*redlocktest.Node)
		told        string // of the fault
		lasts       time.Duration
	}{
		"restarted": {
			func(n *redlocktest.Node) { n.Restart(redlocktest.LoseKeys) }, nil,
			"barred, 10s: restarted or replaced, or its data may be lost, or other data was put into it, so it may have forgotten locks; votes count from", ttl,
		},
		"emptied": {
			func(n *redlocktest.Node) { n.FlushAll() }, nil,
			"barred, 10s: restarted or replaced, or its data may be lost, or other data was put into it, so it may have forgotten locks; votes count from", ttl,
		},
		"which server it is": {
			func(n *redlocktest.Node) { n.Deny("INFO"); n.Cut() },
			func(n *redlocktest.Node) { n.Allow("INFO") },
			"barred, not known: which server it is, and what it remembers, is not known, so its votes do not count: INFO server: NOPERM", 20 * time.Second,
		},
		"its mark": {
			func(n *redlocktest.Node) { n.Deny("GET") },
			func(n *redlocktest.Node) { n.Allow("GET") },
			"barred, not known: which server it is, and what it remembers, is not known, so its votes do not count: GET redlock:memory: NOPERM", 20 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var d diary
			downs := 0
			inBubble(t, 3, &redlock.Options{Hooks: redlock.JoinHooks(votesTold(&d), &redlock.Hooks{
				NodeDown: func(redlock.NodeInfo) { downs++ },
			})}, func(b *bed) {
				b.cycle()
				b.pass(time.Second)
				require.Empty(b, d.take())
				node := b.rl.Nodes()[1]
				b.cluster.Node(1).Hang() // so that it has no say while its connections are cut
				c.fault(b.cluster.Node(1))
				b.cluster.Node(1).Resume()
				b.pass(time.Second)
				b.cycle() // one may find the connection gone
				begin := time.Now()
				b.cycle()
				downs = 0
				require.Empty(b, d.take(), "it may be over with the next answer")
				b.pass(time.Second)
				told := d.take()
				assert.Contains(b, told, node+" "+c.told)
				assert.NotContains(b, told, "\n")
				for range 9 {
					b.cycle()
					b.pass(500 * time.Millisecond)
				}
				assert.Empty(b, d.take(), "it was said")
				if c.mend == nil {
					b.pass(c.lasts - 10*time.Millisecond - time.Since(begin))
					assert.Empty(b, d.take(), "too early")
					b.pass(time.Second)
					assert.Equal(b, node+" votes", d.take(), "without a further call")
				} else {
					c.mend(b.cluster.Node(1))
					b.pass(c.lasts - time.Since(begin))
					assert.Empty(b, d.take(), "it was not asked")
					b.cycle()
					b.pass(time.Second)
					assert.Equal(b, node+" votes", d.take())
				}
				assert.Zero(b, downs)
				b.pass(time.Hour)
				assert.Empty(b, d.take())
			})
		})
	}
}

// What is over at once is not told: the first use of a new fleet, also over a slow network, and an error that the next
// answer contradicts. What an error hides is told when that is over.
func TestHooksAreNotToldOfVotesThatAreSoonBack(t *testing.T) {
	for _, trip := range []time.Duration{0, 40 * time.Millisecond} {
		t.Run(trip.String(), func(t *testing.T) {
			var d diary
			bubble.Run(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
				c.SetUptime(0)
				for _, n := range c.Nodes() {
					n.Delay(trip)
				}
				b := &bed{T: t, cluster: c}
				b.rl = b.another(&redlock.Options{Hooks: votesTold(&d)})
				lock, err := b.rl.Mutex(key).Acquire(deadline(b, 5*time.Second))
				require.NoError(b, err)
				require.NoError(b, lock.Release(b.Context()))
				b.pass(time.Minute)
				assert.Empty(b, d.take())
			})
		})
	}
	t.Run("error", func(t *testing.T) {
		var d diary
		inBubble(t, 3, &redlock.Options{Hooks: votesTold(&d)}, func(b *bed) {
			b.cycle()
			b.cluster.Node(1).Deny("GET")
			for range 4 {
				b.cycle()
				b.pass(100 * time.Millisecond)
			}
			b.cluster.Node(1).Allow("GET")
			b.cycle()
			b.cycle()
			b.pass(time.Minute)
			assert.Empty(b, d.take())
		})
	})
	t.Run("an error that hides a restart", func(t *testing.T) {
		var d diary
		inBubble(t, 3, &redlock.Options{Hooks: votesTold(&d)}, func(b *bed) {
			b.cycle()
			n, name := b.cluster.Node(1), b.rl.Nodes()[1]
			n.FlushAll()
			n.Deny("GET")
			b.cycle()
			b.pass(time.Second)
			assert.Contains(b, d.take(), name+" barred, not known: ")
			n.Allow("GET")
			b.cycle()
			b.cycle()
			b.pass(time.Second)
			told := d.take()
			assert.Contains(b, told, name+" barred, 10s: ", "when it will vote is news")
			assert.NotContains(b, told, "\n")
			b.pass(ttl)
			b.pass(time.Second)
			assert.Equal(b, name+" votes", d.take())
		})
	})
}

// Of two names of one server the second has no vote, and whoever gave both is told so.
func TestHooksAreToldOfADuplicate(t *testing.T) {
	var d diary
	bubble.Run(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
		clients := c.Clients()
		clients[2] = c.Client(1, nil)
		rl, err := redlock.New(clients, &redlock.Options{Hooks: votesTold(&d), NodeNames: []string{"a", "b", "c"}})
		require.NoError(t, err)
		defer rl.Close()
		for range 20 {
			if lock, err := rl.Mutex(key).Acquire(t.Context()); assert.NoError(t, err) {
				assert.NoError(t, lock.Release(t.Context()))
			}
			time.Sleep(100 * time.Millisecond)
		}
		told := d.take()
		assert.Regexp(t, `^[bc] barred, not known: the same server as [bc], whose vote counts$`, told)
	})
}

// After Close nothing is told, and no timer is left for it.
func TestHooksAreNotToldOfVotesAfterClose(t *testing.T) {
	for _, at := range []time.Duration{0, time.Second} {
		t.Run(at.String(), func(t *testing.T) {
			var d diary
			inBubble(t, 3, &redlock.Options{Hooks: votesTold(&d)}, func(b *bed) {
				b.cycle()
				b.cluster.Node(1).FlushAll()
				b.cycle()
				b.pass(at)
				d.take()
				require.NoError(b, b.rl.Close())
				b.pass(time.Hour)
				assert.Empty(b, d.take())
			})
		})
	}
	t.Run("an answer after Close", func(t *testing.T) {
		var d diary
		inBubble(t, 3, &redlock.Options{Hooks: votesTold(&d)}, func(b *bed) {
			b.cycle()
			b.cluster.Node(1).FlushAll()
			b.cluster.Node(1).Delay(nodeTimeout / 4)
			lock := b.lock()
			released := later(func() (*redlock.Lock, error) { return nil, lock.Release(b.Context()) })
			require.NoError(b, b.rl.Close())
			<-released
			b.pass(time.Hour)
			assert.Empty(b, d.take())
		})
	})
}
