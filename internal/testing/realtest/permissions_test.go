package realtest_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What exclusive locks without fencing need at least, by the options, and what is told where it is missing, by an error
// or by Hooks.Degraded; empty: nothing is, and it is done without.
var fewest = map[string]struct {
	options redlock.Options
	needs   []map[string]string
}{
	"with guard and queue":    {redlock.Options{}, []map[string]string{forLocks, forVotes, forQueues}},
	"without a queue":         {redlock.Options{NoQueue: true}, []map[string]string{forLocks, forVotes}},
	"neither guard nor queue": {redlock.Options{NoRestartGuard: true, NoQueue: true}, []map[string]string{forLocks}},
}

var (
	forLocks = map[string]string{
		"~orders:*": "NOPERM", "+set": "set", "+eval": "'eval", "+get": "get", "+del": "del", "+pexpire": "pexpire", "+pttl": "pttl",
		"+type": "", // waiters do not know when a lease ends, and look again by chance
	}
	forVotes = map[string]string{
		"~redlock:memory": "~redlock:memory", "~redlock:trial": "~redlock:trial", "+info": "+info", "+time": "+time",
	}
	forQueues = map[string]string{
		"~{orders:*}:line": "~{*}:line", "+zadd": inQueue, "+zrem": inQueue, "+zscore": inQueue, "+zrangebyscore": inQueue, "+zrevrange": inQueue,
		"+zcount": inQueue, "+publish": "PUBLISH", "+subscribe": "SUBSCRIBE", "&redlock:*": "SUBSCRIBE",
	}
)

// inQueue is what errors say where no queue is kept.
const inQueue = "or set Options.NoQueue"

// spare is what is asked for, and done without.
var spare = append([]string{"evalsha", "getrange", "mget", "exists", "ping", "client|setname"}, courtesies...)

func TestFewestPermissions(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	for name, c := range fewest {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var all []string
			needs := make(map[string]string)
			for _, some := range c.needs {
				maps.Copy(needs, some)
				all = slices.AppendSeq(all, maps.Keys(some))
			}
			t.Run("all", func(t *testing.T) {
				t.Parallel()
				said, denied := asUser(t, c.options, all)
				assert.Empty(t, said)
				assert.Empty(t, denied)
			})
			for rule, says := range needs {
				t.Run("without "+rule, func(t *testing.T) {
					t.Parallel()
					rest := slices.DeleteFunc(slices.Clone(all), func(r string) bool { return r == rule })
					said, denied := asUser(t, c.options, rest)
					assert.Contains(t, said, says)
					assert.NotEmpty(t, denied)
					assert.Equal(t, says == "", said == "", "%s", said)
				})
			}
		})
	}
}

// asUser has two processes of a user with these rules use a lock in turn, and is all that they were told of what is
// missing, and what the server's log says that the user was denied.
func asUser(t *testing.T, o redlock.Options, rules []string) (said string, denied []string) {
	t.Helper()
	server := realredis.Start(t, realredis.User("app", "pw", append([]string{"resetchannels"}, rules...)...))
	d := new(degradations)
	waits := make(chan struct{}, 100)
	o.TTL, o.NodeTimeout, o.Hooks = 2*time.Second, 500*time.Millisecond, d.hooks()
	o.Hooks.Waiting = func(context.Context, redlock.WaitInfo) { waits <- struct{}{} }
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	told := func(err error) bool {
		if err != nil {
			said += err.Error() + "\n"
		}
		return err != nil
	}
	defer func() {
		for _, i := range d.all() {
			said += fmt.Sprintln(i.Lacks, i.Err)
		}
		log, err := server.Client(t).ACLLog(t.Context(), 128).Result()
		require.NoError(t, err)
		for _, e := range log {
			if !slices.Contains(spare, e.Object) {
				denied = append(denied, e.Object)
			}
		}
	}()
	var both [2]*redlock.Mutex
	for i := range both {
		rl, err := openOn(ctx, []string{"redis://app:pw@" + server.Addr()}, &o)
		if told(err) {
			return said, denied
		}
		defer rl.Close()
		both[i] = rl.Mutex(resource)
	}
	for range 3 {
		lock, err := both[0].Acquire(ctx)
		if told(err) {
			break
		}
		type result struct {
			lock *redlock.Lock
			err  error
		}
		next := background(func() result {
			l, err := both[1].Acquire(ctx)
			return result{l, err}
		})
		select {
		case <-waits:
		case <-ctx.Done(): // it has failed
		}
		time.Sleep(10 * time.Millisecond) // so that the release looks for waiters everywhere
		told(lock.Extend(ctx, o.TTL))
		told(lock.Release(ctx))
		r := await(t, next)
		if !told(r.err) {
			time.Sleep(10 * time.Millisecond)
			told(r.lock.Release(ctx))
		}
	}
	return said, denied
}

// A server without a command of queues keeps none, whatever it says of that.
func TestQueueWhoseCommandsAreRenamed(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"ZADD", "ZSCORE", "ZREVRANGE", "ZCOUNT"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			f := startFleet(t, 3, realredis.Args("rename-command", command+` ""`))
			lock := requireLock(t, f.byDefault(t, brisk))
			rl := f.byDefault(t, brisk)
			for range 2 {
				err := promptly(t, func() error { _, err := rl.Mutex(resource).Acquire(t.Context()); return err })
				requireNoQuorum(t, err)
				require.ErrorContains(t, err, inQueue)
				require.ErrorIs(t, try(t, rl), redlock.ErrHeld)
			}
			require.NoError(t, lock.Release(t.Context()))
			f.requireGone(t, resource)
		})
	}
}
