package contract_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/conn"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/quorumlock/redlock/internal/tick"
)

// The trial of a lock's commands writes nothing, and refuses to run where its key is in use.
func TestContractTrial(t *testing.T) {
	t.Parallel()
	for name, start := range contractNodes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := start(t)
			try := protocol.LookRequest("x:redlock:trial", time.Second)
			require.Equal(t, contractAnswer{val: int64(1)}, n.do(try))
			require.Equal(t, "none", n.raw("TYPE", try.Key))
			n.raw("SET", try.Key, "of another")
			require.Equal(t, contractAnswer{val: []any{"", ""}}, n.do(try))
			require.Equal(t, "of another", n.raw("GET", try.Key))
			require.EqualValues(t, -1, n.raw("PTTL", try.Key))
			n.raw("DEL", try.Key)
			n.raw("RPUSH", try.Key, "x")
			got := n.do(try)
			require.NoError(t, got.err)
			require.Equal(t, "GET", got.val.([]any)[0])
			require.Contains(t, got.val.([]any)[1], "WRONGTYPE")
			require.Equal(t, "list", n.raw("TYPE", try.Key))
			err := protocol.TrialFails("EVAL", try.Key, got.val, nil)
			require.True(t, protocol.Permanent(err), "%v", err)
		})
	}
}

// asked is what a server tells a new connection of a guarded client.
func asked(t *testing.T, addr, user string) (err error) {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr, Username: user, Password: map[bool]string{true: "pw"}[user != ""], Protocol: 2})
	t.Cleanup(func() { _ = c.Close() })
	w := conn.NewWire(c, conn.OpenHabits, protocol.MarkKey, "", tick.NewSystem())
	t.Cleanup(w.Close)
	w.Saw = func(s protocol.ServerReport) *protocol.MarkWrite { err = s.Err; return nil }
	w.Ready, w.Duplicate = func() bool { return true }, func() error { return nil }
	_, greeted := w.Greet(context.Background(), 10*time.Second)
	assert.NoError(t, greeted, "the conversation goes on")
	return err
}

// What a vote rests on is proved, one command at a time, by whichever way a server takes it away: the error names the
// command, what to do, and that waiting does not mend it.
func TestContractWhatIsDeniedIsNamed(t *testing.T) {
	t.Parallel()
	server := realredis.Start(t)
	admin := server.Client(t)
	for _, command := range []string{"GET", "TIME", "INFO", "EVALSHA and EVAL", "SET", "PEXPIRE", "PTTL", "DEL"} {
		t.Run("denied, "+command, func(t *testing.T) {
			user := strings.ToLower(command[:3]) + command[len(command)-1:]
			args := []any{"ACL", "SETUSER", user, "reset", "on", ">pw", "~*", "&*", "+@all"}
			for _, c := range strings.Split(command, " and ") {
				args = append(args, "-"+strings.ToLower(c))
			}
			require.NoError(t, admin.Do(t.Context(), args...).Err())
			err := asked(t, server.Addr(), user)
			require.Error(t, err)
			assert.True(t, protocol.Permanent(err), "%v", err)
			assert.False(t, protocol.PermanentBut(err, protocol.NewRights), "an operator may mend it: %v", err)
			command := command[strings.LastIndex(command, " ")+1:]
			assert.Contains(t, err.Error(), command)
			assert.Contains(t, err.Error(), "the user lacks +"+strings.ToLower(command))
			assert.Equal(t, command == "INFO" || command == "TIME", strings.Contains(err.Error(), "Options.NoRestartGuard"), "all others are a lock's: %v", err)
		})
	}
	t.Run("keys", func(t *testing.T) {
		for keys, lacks := range map[string]string{"redlock:memory": "~redlock:trial", "redlock:trial": "~redlock:memory"} {
			require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "keys", "reset", "on", ">pw", "~"+keys, "+@all").Err())
			err := asked(t, server.Addr(), "keys")
			require.ErrorContains(t, err, "the user lacks "+lacks)
			assert.True(t, protocol.Permanent(err))
		}
	})
	for _, command := range []string{"GET", "TIME", "EVAL", "SET", "PEXPIRE", "PTTL", "DEL"} {
		t.Run("renamed, "+command, func(t *testing.T) {
			t.Parallel()
			args := []string{"rename-command", command + ` ""`}
			if command == "EVAL" {
				args = append(args, "rename-command", `EVALSHA ""`)
			}
			err := asked(t, realredis.Start(t, realredis.Args(args...)).Addr(), "")
			require.Error(t, err)
			assert.True(t, protocol.Permanent(err), "%v", err)
			assert.Contains(t, err.Error(), command)
			assert.Equal(t, command == "TIME", strings.Contains(err.Error(), "see Options.NoRestartGuard"), "all others are a lock's: %v", err)
		})
	}
	t.Run("nothing", func(t *testing.T) {
		require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "eval", "reset", "on", ">pw", "~*", "+@all", "-evalsha").Err())
		assert.NoError(t, asked(t, server.Addr(), "eval"), "texts of scripts will do")
		assert.NoError(t, asked(t, server.Addr(), ""))
		require.NoError(t, admin.Set(t.Context(), protocol.TrialKey, "x", 0).Err())
		err := asked(t, server.Addr(), "")
		assert.ErrorContains(t, err, fmt.Sprintf("%q must not exist, and it does: delete it", protocol.TrialKey))
		require.NoError(t, admin.Del(t.Context(), protocol.TrialKey).Err())
	})
	t.Run("for a while", func(t *testing.T) {
		full := realredis.Start(t)
		require.NoError(t, full.Client(t).ConfigSet(t.Context(), "maxmemory", "1").Err())
		err := asked(t, full.Addr(), "")
		require.ErrorContains(t, err, "OOM")
		require.False(t, protocol.Permanent(err))
		require.NoError(t, full.Client(t).ConfigSet(t.Context(), "maxmemory", "0").Err())
		require.NoError(t, full.Client(t).ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
		err = asked(t, full.Addr(), "")
		require.ErrorContains(t, err, "NOREPLICAS")
		require.False(t, protocol.Permanent(err))
	})
}
