package realtest_test

import (
	"context"
	"embed"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/lockset"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What this library sent before locks could be shared (commit d906b5b): its scripts as they
// were, and the command of its acquire.
//
//go:embed testdata/before-sharing/*.lua
var beforeSharing embed.FS

// oldClient is a client of that time, reduced to what it sent.
type oldClient struct {
	nodes []*redis.Client
	key   string
	last  atomic.Int64 // for values
}

func (o *oldClient) script(t *testing.T, name string) string {
	t.Helper()
	read := func(name string) string {
		text, err := beforeSharing.ReadFile("testdata/before-sharing/" + name + ".lua")
		require.NoError(t, err)
		return string(text)
	}
	return strings.Replace(read(name), "-- include line.lua\n", read("line"), 1)
}

func (o *oldClient) newValue() string { return fmt.Sprintf("%032x@old", o.last.Add(1)) }

// on asks one node.
func (o *oldClient) on(t *testing.T, i int, script string, keys []string, args ...any) any {
	t.Helper()
	v, err := o.nodes[i].Eval(t.Context(), o.script(t, script), keys, args...).Result()
	require.NoError(t, err)
	return v
}

// acquire is one attempt. One that fails is taken back.
func (o *oldClient) acquire(t *testing.T, value string) (held bool) {
	t.Helper()
	granted := 0
	for _, n := range o.nodes {
		ok, err := n.SetNX(t.Context(), o.key, value, time.Minute).Result()
		require.NoError(t, err)
		if ok {
			granted++
		}
	}
	if granted > len(o.nodes)/2 {
		return true
	}
	for i := range o.nodes {
		o.on(t, i, "release", []string{o.key}, value)
	}
	return false
}

// release serves the queue of one node, as a holder did.
func (o *oldClient) release(t *testing.T, value string) (released int) {
	t.Helper()
	for i := range o.nodes {
		script := "release"
		if i == 0 {
			script = "line_release"
		}
		if o.on(t, i, script, []string{o.key}, value) == int64(1) {
			released++
		}
	}
	return released
}

// onAll returns when each node has granted the lock. One that has not answered yet when the
// majority is reached may be left alone by what comes next.
func onAll(t *testing.T, lock *redlock.Lock, err error) (*redlock.Lock, error) {
	t.Helper()
	if err == nil {
		eventually(t, func() bool {
			return !slices.ContainsFunc(lock.Outcomes(), func(o redlock.Outcome) bool { return o.Vote != redlock.VoteGranted })
		}, "it is not on all nodes")
	}
	return lock, err
}

// newKinds are all ways to hold a lock that there are now. Each returns how it ends.
func newKinds(t *testing.T, rl *redlock.Redlock, key string) map[string]func() (func() error, error) {
	ctx := t.Context()
	one := func(lock *redlock.Lock, err error) (func() error, error) {
		lock, err = onAll(t, lock, err)
		return func() error { return lock.Release(ctx) }, err
	}
	everywhere := func(lock *redlock.Lock, err error) (*redlock.Lock, error) { return onAll(t, lock, err) }
	force := func(from admin.Target) func() error {
		return func() error { _, err := operator(t, rl).ForceRelease(ctx, key, from); return err }
	}
	m := rl.Mutex(key)
	return map[string]func() (func() error, error){
		"alone":  func() (func() error, error) { return one(m.TryAcquire(ctx)) },
		"shared": func() (func() error, error) { return one(m.Shared().TryAcquire(ctx)) },
		"permit": func() (func() error, error) { return one(rl.Semaphore(key, 3).TryAcquire(ctx)) },
		"a set": func() (func() error, error) {
			held, err := lockset.New(rl.Mutex("another"), m).TryAcquire(ctx)
			if err == nil {
				_, err = everywhere(held[1], nil)
			}
			return func() error { return held.Release(ctx) }, err
		},
		"adopted": func() (func() error, error) {
			lock, err := everywhere(m.TryAcquire(ctx))
			if err != nil {
				return nil, err
			}
			return one(m.Adopt(ctx, lock.Detach()))
		},
		"detached": func() (func() error, error) {
			lock, err := everywhere(m.TryAcquire(ctx))
			if err != nil {
				return nil, err
			}
			token := lock.Detach()
			return force(admin.HeldBy(token)), nil
		},
		"released, and kept": func() (func() error, error) {
			lock, err := everywhere(rl.Mutex(key, redlock.WithMinHold(time.Minute)).TryAcquire(ctx))
			if err != nil {
				return nil, err
			}
			return force(admin.Anything()), lock.Release(ctx)
		},
	}
}

func TestOldClientsAndNewOnesExcludeEachOther(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3)
	rl := f.direct(t, patient)
	// Nodes that are still to be connected to might be left out of what comes first.
	warm, err := onAll(t, requireAcquireOf(t, rl, "warm"), nil)
	require.NoError(t, err)
	require.NoError(t, warm.Release(t.Context()))
	for kind := range newKinds(t, rl, "") {
		// Keys of their own, so that what is under way does not meet what comes next.
		old := &oldClient{nodes: f.admins, key: kind + " by a new client"}
		end, err := newKinds(t, rl, old.key)[kind]()
		require.NoError(t, err, kind)
		eventually(t, func() bool { // a majority was enough for it to return
			held := holdersOn(old.nodes, old.key)
			return len(slices.Compact(held)) == 1
		}, kind+": it has not come to all nodes")
		value := old.newValue()
		assert.False(t, old.acquire(t, value), "%s: an old client has it as well", kind)
		for i := range old.nodes {
			old.changesNothing(t, i, value, kind)
		}
		require.NoError(t, end(), kind)
		eventually(t, func() bool { value = old.newValue(); return old.acquire(t, value) }, kind+": an old client never gets it")

		old = &oldClient{nodes: f.admins, key: kind + " by an old client"}
		value = old.newValue()
		require.True(t, old.acquire(t, value), kind)
		_, err = newKinds(t, rl, old.key)[kind]()
		require.ErrorIs(t, err, redlock.ErrHeld, kind)
		for i := range old.nodes {
			assert.Equal(t, int64(1), old.on(t, i, "extend", []string{old.key}, value, 60000), kind)
		}
		assert.Equal(t, 3, old.release(t, value), kind)
	}
}

// changesNothing sends all that an old client sends to a node where it has no lock.
func (o *oldClient) changesNothing(t *testing.T, i int, value, kind string) {
	t.Helper()
	held := o.nodes[i].Get(t.Context(), o.key).Val()
	require.NotEmpty(t, held, kind)
	assert.Equal(t, held, o.on(t, i, "extend", []string{o.key}, value, 60000), kind)
	assert.Equal(t, held, o.on(t, i, "line_release", []string{o.key}, value), kind)
	line, entry := "{"+o.key+"}:line", "p 500 "+value
	joined, _ := o.on(t, i, "line_join", []string{o.key, line}, entry, "", 0, 0, 30000).([]any)
	require.Len(t, joined, 7, kind)
	assert.Equal(t, int64(0), joined[0], "%s: reserved for an old waiter on node %d", kind, i)
	assert.Equal(t, held, joined[6], kind)
	assert.Positive(t, joined[2], "%s: how long it has to wait", kind)
	o.on(t, i, "line_release", []string{o.key}, value, line, entry, "0")
	assert.Equal(t, held, o.nodes[i].Get(t.Context(), o.key).Val(), kind)
}

// A new client waits in line, and an old one's release wakes it.
func TestOldReleaseWakesWhoWaitsNow(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3)
	rl := f.direct(t, patient)
	old := &oldClient{nodes: f.admins, key: resource}
	value := old.newValue()
	require.True(t, old.acquire(t, value))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	got := make(chan error, 1)
	go func() {
		lock, err := rl.Mutex(resource).Acquire(ctx)
		if err == nil {
			err = lock.Release(ctx)
		}
		got <- err
	}()
	eventually(t, func() bool {
		status, err := operator(t, rl).Inspect(t.Context(), resource)
		return err == nil && len(status.Waiters) == 1
	}, "nobody waits")
	for i := range old.nodes { // whichever keeps the line
		old.on(t, i, "line_release", []string{resource}, value)
	}
	require.NoError(t, <-got)
}

// Both at work on one key at the same time.
func TestFleetOfOldAndNewClients(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3)
	rl := f.direct(t, patient)
	old := &oldClient{nodes: f.admins, key: resource}
	var alone, others, turns atomic.Int32
	asOne := func() {
		assert.Equal(t, int32(1), alone.Add(1))
		assert.Zero(t, others.Load())
		alone.Add(-1)
	}
	asOther := func() {
		others.Add(1)
		assert.Zero(t, alone.Load())
		others.Add(-1)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	uses := []func(){
		func() {
			for value := old.newValue(); ; value = old.newValue() {
				if old.acquire(t, value) {
					asOne()
					turns.Add(1)
					old.release(t, value)
					return
				}
				time.Sleep(time.Millisecond) // as its first pause was, at least
			}
		},
		func() {
			assert.NoError(t, rl.Mutex(resource).Do(ctx, func(context.Context, *redlock.Lock) error { asOne(); return nil }))
		},
		func() {
			assert.NoError(t, rl.Mutex(resource).Shared().Do(ctx, func(context.Context, *redlock.Lock) error { asOther(); return nil }))
		},
		func() {
			assert.NoError(t, rl.Semaphore(resource, 2).Do(ctx, func(context.Context, *redlock.Lock) error { asOther(); return nil }))
		},
	}
	var work sync.WaitGroup
	for _, use := range uses {
		for range 2 {
			work.Go(func() {
				for range 15 {
					use()
				}
			})
		}
	}
	work.Wait()
	assert.Equal(t, int32(30), turns.Load())
}

// A user that may subscribe to all channels and read no key learns the tokens of waiters of before, and no
// others. Both are told of their turns.
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
	held := requireAcquireOf(t, rl, resource)
	old := &oldClient{nodes: f.admins, key: resource}
	value := old.newValue()
	for i := range old.nodes { // whichever keeps the line
		old.on(t, i, "line_join", []string{resource, "{" + resource + "}:line"}, "old 5000 "+value, "", 0, 0, 30000)
	}
	require.NoError(t, held.Release(t.Context()))
	hear(value[:32])
}
