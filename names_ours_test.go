package redlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
)

// A lock that has the name of what belongs to another lock, or to the library, would be deleted
// or outlived by it.
func TestNamesOfOursAreNoLocks(t *testing.T) {
	fn := func(context.Context, *redlock.Lock) error { return errors.New("called") }
	token := strings.Repeat("0a", 16)
	cluster := redlocktest.NewCluster(t, 3)
	for name, says := range map[string]string{
		"redlock:memory":           `"redlock:memory" is where the memory mark is kept on the nodes: must be another key`,
		"other:redlock:memory":     "the memory mark",
		"{report}:line":            `"{report}:line" is where the wait queue of "report" is kept on the nodes: must be another key`,
		"{report}:shared":          `the list of those who share "report"`,
		"{report}:door":            `the key that keeps newcomers from sharing "report"`,
		"{report}:fence":           `the fencing counter of "report"`,
		"{{a}:fence":               `the fencing counter of "{a"`,
		"{a}:line:":                `the wait queue of "{a}"`,
		"x{a}y:shared:":            `share "x{a}y"`,
		"a}:door:":                 `sharing "a}"`,
		"{{report}:line}:line":     "",
		"{{report}:line:}:line":    "",
		strings.Repeat("k", 8193):  "the key is 8193 bytes long, with Options.KeyPrefix: must be at most 8192",
		strings.Repeat("k", 1<<20): "the key is 1048576 bytes long",
		"report:line":              "", // of "report" it is {report}:line
		"report:line:":             "",
		"report:shared:":           "",
		"{}:line":                  "", // of the empty key, which is none
		"a}:line:":                 "", // "a}" can have no queue
		"redlock:memory:2":         "",
		"{report}:lines":           "",
		"{report}:line:orders":     "",
		strings.Repeat("k", 8192):  "",
		"{orders}:42":              "",
	} {
		for prefix, key := range map[string]string{"": name, name[:1]: name[1:]} {
			rl, err := redlock.New(cluster.Clients(), &redlock.Options{KeyPrefix: prefix})
			require.NoError(t, err)
			m := rl.Mutex(key)
			ways := map[string]func(ctx context.Context) error{
				"TryAcquire":   func(ctx context.Context) error { _, err := m.TryAcquire(ctx); return err },
				"Acquire":      func(ctx context.Context) error { _, err := m.Acquire(ctx); return err },
				"Do":           func(ctx context.Context) error { return m.Do(ctx, fn) },
				"Inspect":      func(ctx context.Context) error { _, err := m.Inspect(ctx); return err },
				"ForceRelease": func(ctx context.Context) error { return m.ForceRelease(ctx, "") },
				"Lead":         func(ctx context.Context) error { return m.Lead(ctx, fn) },
				"Adopt":        func(ctx context.Context) error { _, err := m.Adopt(ctx, token); return err },
				"All":          func(ctx context.Context) error { _, err := redlock.All(rl.Mutex("a"), m).Acquire(ctx); return err },
				"Shared":       func(ctx context.Context) error { _, err := m.Shared().TryAcquire(ctx); return err },
				"Semaphore":    func(ctx context.Context) error { _, err := rl.Semaphore(key, 3).Acquire(ctx); return err },
			}
			if says == "" {
				_, err := m.TryAcquire(canceled())
				assert.NotErrorIs(t, err, redlock.ErrInvalid, "%.40s", name)
				continue
			}
			for way, try := range ways {
				err := try(t.Context())
				assert.ErrorIs(t, err, redlock.ErrInvalid, "%s of %.40s", way, name)
				assert.ErrorContains(t, err, says, way)
				assert.Less(t, len(err.Error()), 1000)
			}
			require.NoError(t, rl.Close())
		}
	}
	assert.Zero(t, cluster.Commands())
}
