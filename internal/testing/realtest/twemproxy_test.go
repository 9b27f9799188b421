package realtest_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	ports "github.com/quorumlock/redlock/internal/testing/port"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/stretchr/testify/require"
)

// twemproxy runs Debian's nutcracker in front of a server, and is its address. It knows no INFO, TIME, CLIENT, HELLO,
// PUBLISH or SUBSCRIBE, and hangs up at them.
func twemproxy(t *testing.T, server *realredis.Server) string {
	t.Helper()
	program, err := exec.LookPath("nutcracker")
	if err != nil {
		if program = "/usr/sbin/nutcracker"; exec.Command(program, "-V").Run() != nil {
			t.Skip("twemproxy is not installed: Debian's package nutcracker")
		}
	}
	free := func() int {
		p, reserved, err := ports.Reserve()
		require.NoError(t, err)
		t.Cleanup(func() { _ = reserved.Close() })
		return p
	}
	addr := fmt.Sprintf("127.0.0.1:%d", free())
	conf := filepath.Join(t.TempDir(), "conf.yml")
	require.NoError(t, os.WriteFile(conf, []byte(fmt.Sprintf(`node:
  listen: %s
  redis: true
  hash: fnv1a_64
  distribution: ketama
  servers:
    - %s:1 server
`, addr, server.Addr())), 0o600))
	var log strings.Builder
	cmd := exec.Command(program, "-c", conf, "-a", "127.0.0.1", "-s", fmt.Sprint(free()))
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	eventually(t, func() bool {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}, "twemproxy does not listen")
	return addr
}

// With neither guard nor queue a proxy that knows little more than a lock's commands is a node: locks are acquired,
// extended, waited for and released.
func TestNodesBehindProxiesThatKnowLittle(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	for name, behind := range map[string]func(*testing.T, *realredis.Server) string{
		"none": func(_ *testing.T, s *realredis.Server) string { return s.Addr() },
		"one of the tests' own": func(t *testing.T, s *realredis.Server) string { // which answers PING itself, and knows as little
			p, addr := frontOf(t, s)
			p.say(func(_ int, words []string) remark {
				if slices.Contains([]string{"SET", "EVAL", "EVALSHA"}, strings.ToUpper(words[0])) {
					return remark{}
				}
				return remark{instead: "-ERR " + words[0] + " is not known here\r\n", hangUp: true}
			})
			return addr
		},
		"twemproxy": twemproxy,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startFleet(t, 3)
			var addrs []string
			for _, s := range f.servers {
				addrs = append(addrs, behind(t, s))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			o := redlock.Options{NoRestartGuard: true, NoQueue: true}
			var both [2]*redlock.Mutex
			for i := range both {
				rl, err := openOn(ctx, addrs, &o)
				require.NoError(t, err)
				defer rl.Close()
				both[i] = rl.Mutex(resource)
			}
			for turn := range 5 {
				lock, err := both[turn%2].Acquire(ctx)
				require.NoError(t, err)
				next := background(func() error {
					return both[1-turn%2].Do(ctx, func(context.Context, *redlock.Lock) error { return nil })
				})
				require.NoError(t, lock.Extend(ctx, 20*time.Second))
				require.Len(t, f.holders(resource), 3)
				time.Sleep(20 * time.Millisecond) // held for so long that the release looks for waiters, where there are queues
				require.NoError(t, lock.Release(ctx))
				require.NoError(t, await(t, next))
			}
			adopted, err := both[0].Acquire(ctx)
			require.NoError(t, err)
			adopted, err = both[1].Adopt(ctx, adopted.Detach())
			require.NoError(t, err)
			require.NoError(t, adopted.Release(ctx))
			f.requireGone(t, resource)
			for _, s := range f.servers {
				require.Empty(t, leftKeys(s.Client(t)))
			}
		})
	}
}
