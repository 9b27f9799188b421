package redlock_test

import (
	"bytes"
	"context"
	"log/slog"
	"reflect"
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

		// An attempt that the other two have failed may end before it was sent to the last node.
		// Inspect asks them all.
		b.cluster.Node(2).Stop()
		_, _ = b.rl.Mutex(key).Inspect(b.Context())
		has("WARN", "redlock node down", "node="+b.rl.Nodes()[2], "err=")
		b.cluster.Node(2).Restart(redlocktest.KeepKeys)
		b.pass(time.Minute)
		_, _ = b.rl.Mutex(key).Inspect(b.Context())
		has("INFO", "redlock node up", "node="+b.rl.Nodes()[2])
	})
}

// Ordinary contention is not worth a line. A wait that goes on and on is, and does not fill the
// log, however many wait.
func TestLogHooksTellOfLongWaits(t *testing.T) {
	var book, details logbook
	hooks := redlock.JoinHooks(redlock.LogHooks(book.logger(slog.LevelInfo)), redlock.LogHooks(details.logger(slog.LevelDebug)))
	inBubble(t, 3, nil, func(b *bed) {
		held := b.lock(redlock.WithRenewal())
		rl := b.another(&redlock.Options{Hooks: hooks})
		var all []<-chan result
		for range 5 {
			all = append(all, later(func() (*redlock.Lock, error) { return rl.Mutex(key).Acquire(b.Context()) }))
			b.pass(time.Millisecond)
		}
		assert.Equal(b, 5, strings.Count(details.take(), `level=DEBUG msg="waiting for lock" key=`+key+" waited=0s attempts="))
		b.pass(7 * time.Second)
		assert.Empty(b, book.take())
		b.pass(2 * time.Second)
		line := book.take()
		assert.Equal(b, 1, strings.Count(line, "\n"), "one of five: %s", line)
		assert.Contains(b, line, `level=INFO msg="still waiting for lock" key=`+key+" waited=8s attempts=1 holder="+held.Token()[:8]+"...@")
		assert.Regexp(b, "free_in=[0-9.]+s ahead=0 err=\"held by another\"\n", line)
		assert.Equal(b, 4, strings.Count(details.take(), "level=DEBUG msg=\"still waiting for lock\" key="+key+" waited=8s"))
		b.pass(30 * time.Second)
		assert.Equal(b, 2, strings.Count(book.take(), "still waiting"), "after 16 s and 32 s")
		require.NoError(b, held.Release(b.Context()))
		for _, done := range all {
			require.NoError(b, (<-done).lock.Release(b.Context()))
		}
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
		h.Acquired(redlock.AcquireInfo{Context: t.Context(), Key: "k"})
		h.Extended(redlock.ExtendInfo{Context: t.Context(), Key: "k"})
		h.Released(redlock.ReleaseInfo{Context: t.Context(), Key: "k"})
		h.NodeUp(redlock.NodeInfo{Node: "n"})
		h.Waiting(redlock.WaitInfo{Context: t.Context(), Key: "k", Waited: time.Hour})
		h.Acquired(redlock.AcquireInfo{Context: t.Context(), Key: "k", Err: context.DeadlineExceeded}) // of WithMaxWait
		assert.Empty(t, book.take())
		h.Degraded(redlock.DegradedInfo{Node: "n", Lacks: "the guard", Err: redlock.ErrInvalid})
		assert.Equal(t, "level=WARN msg=\"redlock node degraded\" node=n lacks=\"the guard\" err=invalid\n", book.take())
		h.Lost(redlock.LostInfo{Context: t.Context(), Key: strings.Repeat("k", 1<<20), Err: redlock.ErrLost})
		assert.Less(t, len(book.take()), 1000)
		for _, err := range []error{redlock.ErrReleased, redlock.ErrClosed} {
			h.Extended(redlock.ExtendInfo{Context: t.Context(), Key: "k", Err: err})
			assert.Empty(t, book.take(), "it was our own doing")
		}
		h.Extended(redlock.ExtendInfo{Context: t.Context(), Key: "k", Err: redlock.ErrNotHeld})
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
