package realtest_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What a server says reaches errors, hooks and logs without what controls a terminal, and not without an end;
// of its answer to AUTH, in which a hostile one may repeat the password, only the code does. (Package admin goes over
// go-redis, which does not tell what was asked.)
func TestTextsOfHostileServers(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t-of-mine"
	evil := "-ERR \x1b[31mred\x07 \u202e " + secret + strings.Repeat(" and so on", 1000) + "\r\n"
	for _, place := range []string{"AUTH", "PING", "INFO", "CLIENT", "GET", "SET", "EVALSHA", "SUBSCRIBE"} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			h := startHostile(t, place, evil, "")
			c := redis.NewClient(&redis.Options{Addr: h.l.Addr().String(), Password: secret, Protocol: 2})
			t.Cleanup(func() { _ = c.Close() })
			var mu sync.Mutex
			var said []string
			note := func(what string, err error) {
				mu.Lock()
				defer mu.Unlock()
				said = append(said, what+" "+fmt.Sprint(err))
				var q *redlock.QuorumError
				if errors.As(err, &q) {
					for _, o := range q.Outcomes {
						said = append(said, what+" "+fmt.Sprint(o.Err))
					}
				}
			}
			var log bytes.Buffer
			hooks := redlock.JoinHooks(redlock.LogHooks(slog.New(slog.NewTextHandler(&log, nil))), &redlock.Hooks{
				NodeDown:   func(i redlock.NodeInfo) { note("", i.Err) },
				NodeBarred: func(i redlock.VoteInfo) { note("", i.Err) },
				Degraded:   func(i redlock.DegradedInfo) { note(i.Lacks, i.Err) },
			})
			rl, err := redlock.New([]redis.UniversalClient{c}, &redlock.Options{TTL: time.Second, NodeTimeout: 100 * time.Millisecond, Hooks: hooks})
			require.NoError(t, err)
			_, err = rl.Mutex("k").TryAcquire(t.Context())
			note("try", err)
			_, err = rl.Mutex("k", redlock.WithMaxWait(200*time.Millisecond)).Acquire(t.Context())
			note("acquire", err)
			nodes, err := admin.New([]redis.UniversalClient{c}, &admin.Options{NodeTimeout: 100 * time.Millisecond, TTL: time.Second})
			require.NoError(t, err)
			defer nodes.Close()
			_, err = nodes.Inspect(t.Context(), "k")
			note("inspect", err)
			report, err := nodes.Check(t.Context())
			if err == nil {
				for line := range strings.Lines(report.String()) {
					note(strings.TrimSpace(line), nil)
				}
			}
			note("check", err)
			require.NoError(t, rl.Close())
			mu.Lock()
			defer mu.Unlock()
			for _, text := range append(said, strings.Split(log.String(), "\n")...) {
				assert.False(t, strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }), "%.300q", text)
				assert.Less(t, len(text), 8<<10, "%.300q", text)
				if place == "AUTH" && !strings.HasPrefix(text, "check") && !strings.HasPrefix(text, "inspect") {
					assert.NotContains(t, text, secret)
				}
			}
		})
	}
}
