package redlock_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
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
		Acquired: func(i redlock.AcquireInfo) {
			d.add("acquired %s token:%s attempts:%d in %v %s", i.Key, known(i.Token), i.Attempts, i.Elapsed, short(i.Err))
		},
		Extended: func(i redlock.ExtendInfo) {
			d.add("extended %s token:%s ttl:%v renewal:%v in %v %s", i.Key, known(i.Token), i.TTL, i.Renewal, i.Elapsed, short(i.Err))
		},
		Released: func(i redlock.ReleaseInfo) {
			d.add("released %s token:%s held:%v in %v %s", i.Key, known(i.Token), i.Held, i.Elapsed, short(i.Err))
		},
		Lost:     func(i redlock.LostInfo) { d.add("lost %s token:%s %s", i.Key, known(i.Token), short(i.Err)) },
		NodeDown: func(i redlock.NodeInfo) { d.add("down %s %s", i.Node, short(i.Err)) },
		NodeUp:   func(i redlock.NodeInfo) { d.add("up %s %s", i.Node, short(i.Err)) },
	}
}

func TestHooksAreToldWhatHappens(t *testing.T) {
	var d diary
	var token string
	inBubble(t, 3, &redlock.Options{Hooks: d.hooks(&token), RetryMin: time.Second, RetryMax: time.Second}, func(b *bed) {
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
		b.each([]int{0, 1, 2}, (*redlocktest.Node).FlushAll)
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
		Acquired: func(i redlock.AcquireInfo) { use(b, "acquired", i.Token) },
		Extended: func(i redlock.ExtendInfo) { use(b, "extended", "") },
		Released: func(i redlock.ReleaseInfo) { use(b, "released", i.Token) },
		Lost:     func(i redlock.LostInfo) { use(b, "lost", i.Token) },
		NodeDown: func(redlock.NodeInfo) { use(b, "down", "") },
		NodeUp:   func(redlock.NodeInfo) { use(b, "up", "") },
	}
	inBubble(t, 3, &redlock.Options{Hooks: hooks}, func(bb *bed) {
		b, rl = bb, bb.rl
		for _, loseBy := range []func(*redlock.Lock){
			func(l *redlock.Lock) { b.pass(ttl); _ = l.Extend(b.Context(), ttl) },
			func(l *redlock.Lock) {
				b.each([]int{0, 1, 2}, (*redlocktest.Node).FlushAll)
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

// A new hook must be filled in like the others.
func TestEveryHookMayBeNil(t *testing.T) {
	filled := redlock.FilledHooks(nil)
	v := reflect.ValueOf(*filled)
	for i := range v.NumField() {
		assert.False(t, v.Field(i).IsNil(), v.Type().Field(i).Name)
	}
	called := false
	own := &redlock.Hooks{Lost: func(redlock.LostInfo) { called = true }}
	redlock.FilledHooks(own).Lost(redlock.LostInfo{})
	assert.True(t, called)
	assert.Nil(t, own.Acquired, "a copy")
}
