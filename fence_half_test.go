package redlock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/realredis"
)

// Scenario 91: a user may write the lock, but not its fencing counter. Redis does not roll
// back what a script did before it failed, so the counter comes first.
func TestFencedScriptsFailWhole(t *testing.T) {
	t.Parallel()
	if realredis.Major(t) < 7 {
		t.Skip("no user can have such rights before Redis 7")
	}
	server := realredis.Start(t)
	admin := server.Client(t)
	ctx := context.Background()
	require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", "half", "on", ">pw", "+@all", "-set", "~*", "&*", "(+set ~k)").Err())
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "half", Password: "pw", Protocol: 2, MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	require.NoError(t, client.Set(ctx, "k", "x", 0).Err(), "it may set the lock")
	require.NoError(t, admin.Del(ctx, "k").Err())

	w := newOwnWire(client, openHabits, "", newSystemClock())
	t.Cleanup(w.close)
	for name, req := range map[string]*request{
		"acquire": askFence("a", 1, ""), "claim": askFence("a", 1, entryOf("p", "a")), "repair": askFenceRepair("a", 8),
	} {
		c := &call{req: req.withSource()}
		w.exchange([]*call{c}, 10*time.Second, 10*time.Second, func() {})
		assert.Equal(t, kindFailed, c.read(req.op).kind, name)
		assert.True(t, permanent(c.err), "%s: %v", name, c.err)
		assert.True(t, halfWay(c.err), "%s: %v", name, c.err)
		assert.Empty(t, admin.Keys(ctx, "*").Val(), name)
	}
}

// Whatever the order in a script, one that failed may have done a part, so it is released.
// Errors that come before a script does anything need no release: a node that answers them
// would be asked twice as often.
func TestReleaseOfAScriptThatFailed(t *testing.T) {
	for answer, released := range map[string]bool{
		"NOPERM this user has no permissions to access one of the keys used as arguments":                                               true,
		"ERR ACL failure in script: No permissions to access a key script: d8f2, on @user_script:30.":                                   true,
		"ERR Error running script (call to f_d8f2): @user_script:3: The user executing the script can't run this command or subcommand": true,
		"ERR something that nobody has heard of":                                                                                        true,
		"READONLY You can't write against a read only replica. script: d8f2, on @user_script:30.":                                       false,
		"ERR Error running script (call to f_d8f2): @user_script:3: -READONLY You can't write against a read only replica.":             false,
		"MISCONF Redis is configured to save RDB snapshots":                                                                             false,
		"OOM command not allowed when used memory > 'maxmemory'.":                                                                       false,
		"BUSY Redis is busy running a script.":                                                                                          false,
		"LOADING Redis is loading the dataset in memory":                                                                                false,
		"NOAUTH Authentication required.":                                                                                               false,
		"BADFENCE the fencing counter has reached its end":                                                                              false,
		"MOVED 1 127.0.0.1:7001": false,
	} {
		onBench(t, func(b *bench) {
			b.reply = func(name string, _ bool) ballot {
				if name == "aacquire" {
					return ballot{err: serverError(answer), sent: true}
				}
				return ballot{}
			}
			set := b.call(opAcquireFenced, "a")
			set.req.script = fenceScript
			b.lane.enqueue(set, b.now())
			synctest.Wait()
			require.Equal(b, kindFailed, lastTold(set).kind)
			b.release(set, "a")
			assert.Equal(b, released, len(b.sent()) == 2, "%s: %v", answer, b.sent())
			b.empty()
		})
	}
	onBench(t, func(b *bench) { // a plain SET is one step
		b.reply = func(string, bool) ballot { return ballot{err: serverError("NOPERM"), sent: true} }
		set := b.send(opAcquire, "a")
		synctest.Wait()
		b.release(set, "a")
		assert.Len(b, b.sent(), 1)
	})
}
