package realtest_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What servers may withhold of that on which a vote rests: one command, denied to the user, or unknown.

// withheldFrom starts four servers, of which the first two do not have the command, and returns their URLs.
func withheldFrom(t *testing.T, way, command string) (servers []*realredis.Server, urls []string) {
	t.Helper()
	user := func(rules ...string) realredis.Option {
		return realredis.User("app", "pw", append([]string{"~*", "&*", "+@all"}, rules...)...)
	}
	bad := []realredis.Option{user("-" + strings.ToLower(command))}
	if way == "renamed" {
		bad = []realredis.Option{user(), realredis.Args("rename-command", command+` ""`)}
	}
	servers = append(realredis.StartN(t, 2, bad...), realredis.StartN(t, 2, user())...)
	for _, s := range servers {
		urls = append(urls, "redis://app:pw@"+s.Addr())
	}
	return servers, urls
}

// withheldClients are clients of the nodes, for New.
func withheldClients(t *testing.T, urls []string) (clients []redis.UniversalClient) {
	t.Helper()
	for _, u := range urls {
		o, err := redis.ParseURL(u)
		require.NoError(t, err)
		o.Protocol = 2
		c := redis.NewClient(o)
		t.Cleanup(func() { _ = c.Close() })
		clients = append(clients, c)
	}
	return clients
}

// A node that withholds one command that locks or votes need has no vote, says so, and names the command. One of three
// keeps nothing from being granted. Two of three do, and each call says so at once, however long its context lasts.
func TestNodesThatWithholdOneCommand(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	for _, command := range []string{"TIME", "PTTL", "PEXPIRE", "DEL", "EVALSHA", "SET", "GET", "INFO"} {
		for _, way := range []string{"denied", "renamed"} {
			if command == "INFO" && way == "renamed" {
				continue // which the tests' own way to start servers needs
			}
			t.Run(command+" "+way, func(t *testing.T) {
				t.Parallel()
				servers, urls := withheldFrom(t, way, command)
				votes := command == "EVALSHA" // by EVAL
				t.Run("on one of three", func(t *testing.T) {
					withheldOnOne(t, command, votes, servers[0], []string{urls[0], urls[2], urls[3]})
				})
				t.Run("on two of three", func(t *testing.T) {
					withheldOnTwo(t, command, votes, urls[:3])
				})
			})
		}
	}
}

// withheldOptions have a short bar, as the fleet is not seen to be new.
func withheldOptions(prefix string) redlock.Options {
	return redlock.Options{TTL: 2 * time.Second, NodeTimeout: 500 * time.Millisecond, KeyPrefix: prefix}
}

func withheldOnOne(t *testing.T, command string, votes bool, server *realredis.Server, urls []string) {
	o := withheldOptions("one:")
	told := make(chan redlock.VoteInfo, 100)
	o.Hooks = &redlock.Hooks{NodeBarred: func(i redlock.VoteInfo) { told <- i }}
	rl := newOn(t, o, withheldClients(t, urls)...)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	lock, err := rl.Mutex(resource).Acquire(ctx)
	require.NoError(t, err)
	waitForVotes(t, lock)
	said := lock.Outcomes()[0]
	t.Logf("%s: granted; the node: %v, %v", t.Name(), said.Vote, said.Err)
	if votes {
		// It is asked once more for its trial, and a new fleet's first lock may have been granted by the others before.
		eventually(t, func() bool {
			if said.Vote != redlock.VoteGranted {
				require.NoError(t, lock.Release(t.Context()))
				lock, err = rl.Mutex(resource).Acquire(ctx)
				require.NoError(t, err)
				waitForVotes(t, lock)
				said = lock.Outcomes()[0]
			}
			return said.Vote == redlock.VoteGranted
		}, "it does not vote")
	} else {
		assert.NotEqual(t, redlock.VoteGranted, said.Vote)
		namesCommand(t, said.Err, command)
		for info := await(t, told); ; info = await(t, told) {
			if info.Node == rl.Nodes()[0] {
				namesCommand(t, info.Err, command)
				assert.Zero(t, info.Until)
				break
			}
		}
	}
	o.Hooks = nil
	require.NoError(t, lock.Extend(ctx, 2*time.Second))
	require.NoError(t, lock.Release(ctx))
	opened, err := openOn(ctx, urls, &o)
	require.NoError(t, err)
	require.NoError(t, opened.Close())
	require.NoError(t, rl.Mutex("done").Do(ctx, func(context.Context, *redlock.Lock) error { return nil }))
	if command != "DEL" {
		client := server.Client(t)
		eventually(t, func() bool { return client.Exists(t.Context(), "one:"+resource).Val() == 0 }, "the lock is left")
	}
}

func withheldOnTwo(t *testing.T, command string, votes bool, urls []string) {
	o := withheldOptions("two:")
	rl := newOn(t, o, withheldClients(t, urls)...)
	calls := map[string]func(ctx context.Context) error{
		"TryAcquire": func(ctx context.Context) error { return given(rl.Mutex(resource).TryAcquire(ctx)) },
		"Acquire":    func(ctx context.Context) error { return given(rl.Mutex(resource).Acquire(ctx)) },
		"Do": func(ctx context.Context) error {
			return rl.Mutex(resource).Do(ctx, func(context.Context, *redlock.Lock) error { return nil })
		},
		"Open": func(ctx context.Context) error {
			opened, err := openOn(ctx, urls, &o)
			if err == nil {
				err = opened.Close()
			}
			return err
		},
	}
	for _, name := range []string{"Open", "Acquire", "Do", "TryAcquire"} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		began := time.Now()
		err := within(t, 40*time.Second, background(func() error { return calls[name](ctx) }), name+" waits for ever")
		t.Logf("%s: %s after %v: %v", t.Name(), name, time.Since(began).Round(time.Millisecond), err)
		if votes {
			if name != "TryAcquire" {
				assert.NoError(t, err, name)
			}
		} else if assert.ErrorIs(t, err, redlock.ErrNoQuorum, name) {
			assert.NoError(t, ctx.Err(), "%s waits for what does not come", name)
			assert.NotErrorIs(t, err, context.DeadlineExceeded, name)
			told := 0
			for _, o := range outcomes(t, err)[:2] {
				if o.Vote != redlock.VotePending && o.Vote != redlock.VoteNotSent { // that of the other one was enough
					namesCommand(t, o.Err, command)
					told++
				}
			}
			assert.Positive(t, told, name)
		}
		cancel()
	}
}

func given(lock *redlock.Lock, err error) error {
	if err == nil {
		err = lock.Release(context.Background())
	}
	return err
}

// namesCommand checks that what a node said tells an operator which command it withholds, and the option where that
// does without it: for a lock itself none does.
func namesCommand(t *testing.T, err error, command string) {
	t.Helper()
	if assert.Error(t, err, command) {
		assert.Contains(t, strings.ToUpper(err.Error()), command)
		if command != "GET" { // of the mark, without which the option does
			assert.Equal(t, command == "INFO" || command == "TIME", strings.Contains(err.Error(), "NoRestartGuard"), "%v", err)
		}
	}
}

// What takes the votes of nodes away while a lock is held takes nothing else: it is extended and released, its waiter is
// told that no majority votes, and when the right is given back the next acquire is granted.
func TestRightThatIsTakenAwayWhileALockIsHeld(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	for _, right := range []string{"time", "info"} {
		t.Run(right, func(t *testing.T) {
			t.Parallel()
			servers := realredis.StartN(t, 3, realredis.User("app", "pw", "~*", "&*", "+@all"))
			var urls []string
			for _, s := range servers {
				urls = append(urls, "redis://app:pw@"+s.Addr())
			}
			change := func(sign string) {
				for _, s := range servers {
					require.NoError(t, s.Client(t).Do(t.Context(), "ACL", "SETUSER", "app", sign+right).Err())
				}
			}
			rl := newOn(t, redlock.Options{TTL: 10 * time.Second, NodeTimeout: 2 * time.Second}, withheldClients(t, urls)...)
			held := requireAcquireNow(t, rl)
			waitForVotes(t, held)
			change("-")
			eventually(t, func() bool {
				err := given(rl.Mutex("another").TryAcquire(t.Context()))
				return err != nil && strings.Contains(err.Error(), "NoRestartGuard")
			}, "the votes go on to count")
			for range 10 {
				require.NoError(t, held.Extend(t.Context(), 10*time.Second))
				pass(150 * time.Millisecond)
			}
			requireNoQuorum(t, promptly(t, func() error { return given(rl.Mutex("another").Acquire(t.Context())) }))
			require.NoError(t, held.Release(t.Context()))
			change("+")
			eventually(t, func() bool { return given(rl.Mutex(resource).TryAcquire(t.Context())) == nil }, "not granted again")
		})
	}
}
