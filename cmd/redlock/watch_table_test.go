//go:build unix

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
)

// waits has a client of another owner wait for k, until the returned function is called.
func (s *site) waits(t *testing.T) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if lock, err := s.rl.Mutex("k").Acquire(ctx); err == nil {
			_ = lock.Release(ctx)
		}
	})
	end = func() { cancel(); waiting.Wait() }
	t.Cleanup(end)
	return end
}

// lineWith is the next line that has the text: a line may come while only some nodes have changed.
func (p *process) lineWith(t *testing.T, text string) string {
	t.Helper()
	for {
		line := p.line(t)
		if strings.Contains(line+"\n", text) {
			return line
		}
		require.NotEmpty(t, line, "it ended before it said %q: %s", text, p.errs.String())
	}
}

// Without a key watch follows all locks, in a pipe by a line for each change.
func TestWatchOfAllLocksInAPipe(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.ageMarks(t)
	p := s.start(t, "watch", "--interval", "50ms")
	assert.Contains(t, p.line(t), "3 of 3 nodes answer, 2 are enough. 0 locks held")
	lock := s.hold(t)
	p.lineWith(t, "  k is held by the test\n")
	end := s.waits(t)
	p.lineWith(t, "  k is held by the test, 1 waiting\n")
	end()
	p.lineWith(t, "  k is held by the test\n")
	s.servers[2].Kill()
	p.lineWith(t, s.rl.Nodes()[2]+" does not answer: ")
	require.NoError(t, lock.Release(t.Context()))
	p.lineWith(t, "k is free")
	s.servers[1].Kill()
	p.lineWith(t, "No quorum: 1 of 3 nodes answer")
	require.NoError(t, p.Process.Signal(syscall.SIGINT))
	assert.Zero(t, p.end(t))
}

func TestWatchOfSeveralLocksAsJSON(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	lock := s.hold(t)
	other, err := s.rl.Mutex("not named").Acquire(t.Context())
	require.NoError(t, err)
	p := s.start(t, "watch", "k", "free", "--json", "--interval", "50ms")
	line := p.line(t)
	assert.NotContains(t, line, lock.Token(), "anyone who has it can release the lock")
	var seen locksJSON
	require.NoError(t, json.Unmarshal([]byte(line), &seen))
	assert.Equal(t, 2, seen.Quorum)
	assert.Equal(t, 3, seen.Answers)
	require.Len(t, seen.Nodes, 3)
	assert.Equal(t, lockNodeJSON{Node: s.rl.Nodes()[0]}, seen.Nodes[0])
	require.Len(t, seen.Locks, 2)
	k := map[string]lockJSON{seen.Locks[0].Key: seen.Locks[0], seen.Locks[1].Key: seen.Locks[1]}
	assert.InDelta(t, 60, k["k"].TTL, 30)
	was := k["k"]
	was.TTL = 0
	assert.Equal(t, lockJSON{Key: "k", State: "held", Owner: "the test", Nodes: 3}, was)
	assert.Equal(t, lockJSON{Key: "free", State: "free"}, k["free"])
	require.NoError(t, lock.Release(t.Context()))
	for seen.Locks[0].State != "free" || seen.Locks[1].State != "free" { // a line may come between two nodes' releases
		require.NoError(t, json.Unmarshal([]byte(p.line(t)), &seen))
	}
	require.NoError(t, p.Process.Signal(syscall.SIGINT))
	assert.Zero(t, p.end(t))
	require.NoError(t, other.Release(t.Context()))
	assert.Equal(t, exitUsage, s.ran(t, "watch", "k", "redlock:memory").code, "a name of the library's own")
}

// On a terminal the table changes in place, and is drawn anew when the terminal has another width.
func TestWatchOfAllLocksOnATerminal(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	lock := s.hold(t)
	x := s.terminal(t, "sh", "-c", `exec "$REDLOCK" watch --interval 50ms`)
	x.expect(t, "3 of 3 nodes answer")
	x.expect(t, "KEY")
	x.expect(t, "k    the test")
	x.expect(t, "\x1b[3A") // the verdict, the heading and a lock
	require.NoError(t, pty.Setsize(x.File, &pty.Winsize{Rows: 24, Cols: 90}))
	x.expect(t, "\x1b[H\x1b[2J")
	x.expect(t, "k    the test")
	require.NoError(t, lock.Release(t.Context()))
	x.expect(t, "0 locks held")
	x.typed(t, ctrlC)
	assert.Zero(t, x.end(t))

	x = s.terminal(t, "sh", "-c", `stty cols 30; exec "$REDLOCK" bench --goroutines 2 --duration 700ms`)
	x.end(t) // a busy machine makes errors
	bars := regexp.MustCompile(`\r([^\r]*cycles/s[^\r]*)\x1b\[K`).FindAllStringSubmatch(x.out.String(), -1)
	require.NotEmpty(t, bars)
	for _, bar := range bars {
		assert.Less(t, columns(bar[1]), 30)
	}
	for _, bar := range regexp.MustCompile(`(?m)^  <= .*%`).FindAllString(x.out.String(), -1) {
		assert.LessOrEqual(t, columns(bar), 30)
	}
}

// The table has no more lines than the terminal, whatever is in it, and locks in doubt come first.
func TestTableOfLocksFitsTheTerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // time stands still
		b := newBoard(&admin.Nodes{}, nil, 0)
		table := &lockTable{board: b, paint: newPalette(false)}
		v := view{Quorum: 2, Answers: 2, More: 3, Verdict: verdict{odd, "2 of 3 nodes answer."},
			Nodes: []viewNode{{Name: "a"}, {Name: "b", Barred: 60_000}, {Name: "c", Error: "connection refused"}}}
		v.Locks = append(v.Locks, viewLock{Key: "first", State: "in doubt", Owner: "app1:7", Has: 1, Waiting: 2, Waiters: []viewWaiter{{"app2:9", 0}}})
		for i := range 50 {
			v.Locks = append(v.Locks, viewLock{Key: fmt.Sprint("k", i), State: "held", Owner: "app1:7", Until: -1, Has: 2, Fence: 17})
		}
		for _, height := range []int{1, 2, 3, 5, 10, 24} {
			for _, width := range []int{1, 9, 20, 39, 100} {
				lines := table.text(v, width, height)
				assert.LessOrEqual(t, len(lines), max(height-1, 1), "the last one is the cursor's; %d", height)
				for _, line := range lines {
					assert.LessOrEqual(t, columns(line), width, line)
				}
			}
			if height < 10 {
				continue
			}
			text := strings.Join(table.text(v, 100, height), "\n")
			assert.Contains(t, text, "\nKEY    HOLDER          LEASE")
			assert.Contains(t, text, "\nfirst  perhaps app1:7  -")
			assert.Contains(t, text, "2: app2:9 for 0s")
			assert.Regexp(t, `\nand \d+ more locks\nb may not vote for another 1m0s\nc does not answer: connection refused$`, text)
		}
		assert.Equal(t, "2 of 3 nodes answer, 2 are enough. 50 locks held, 0 of them awaited. 3 more are not listed.", v.verdict().Text)
		text := strings.Join(table.text(v, 100, 200), "\n")
		assert.Contains(t, text, "\nk49    app1:7          no end  2/3    17     -\nand 3 more locks\n")
		v.Locks = []viewLock{{Key: "注文🔒e\u0301", State: "held", Owner: "app1:7", Until: -1, Has: 2}, {Key: "short", State: "held", Owner: "app1:7", Until: -1, Has: 2}}
		text = strings.Join(table.text(v, 100, 24), "\n")
		assert.Contains(t, text, "\nKEY      HOLDER")
		assert.Contains(t, text, "\n注文🔒e\u0301  app1:7")
		assert.Contains(t, text, "\nshort    app1:7")
		assert.Equal(t, []string{"注...", "...🔒", "..", "注文"}, []string{cut("注文注文", 6), cutLeft("注文🔒", 5), cut("注文", 2), cut("注文", 4)})
	})
}

// A lock that is not listed any more is not free, and one that is free is not counted for ever.
func TestWatchOfMoreLocksThanItLists(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.ageMarks(t)
	var locks []*redlock.Lock
	held := func(key string) {
		lock, err := s.rl.Mutex(key, redlock.WithTTL(time.Hour)).Acquire(t.Context())
		require.NoError(t, err)
		locks = append(locks, lock)
	}
	for i := range mostLocks + 5 {
		held(fmt.Sprintf("k:%03d", i))
	}
	counts := s.start(t, "watch", "--json", "--interval", "50ms")
	more := func(n int) {
		t.Helper()
		for seen := (locksJSON{More: -1}); seen.More != n || len(seen.Locks) != mostLocks; {
			seen = locksJSON{}
			require.NoError(t, json.Unmarshal([]byte(counts.line(t)), &seen))
		}
	}
	more(5)
	for _, lock := range locks[mostLocks:] {
		require.NoError(t, lock.Release(t.Context()))
	}
	more(0)

	p := s.start(t, "watch", "--interval", "50ms")
	first := p.line(t)
	for tries := 1; tries < 20 && !strings.Contains(first, "500 locks"); tries++ { // on a busy machine the first look may find fewer
		require.NoError(t, p.Process.Signal(syscall.SIGINT))
		require.Zero(t, p.end(t))
		p = s.start(t, "watch", "--interval", "50ms")
		first = p.line(t)
	}
	assert.Contains(t, first, "500 locks held, 0 of them awaited.")
	p.lineWith(t, "k:499 is held by the test")
	held("a")
	p.lineWith(t, "a is held by the test")
	require.NoError(t, locks[0].Release(t.Context()))
	for line := ""; !strings.Contains(line, "k:000 is free"); {
		line = p.line(t)
		assert.NotContains(t, line, "k:499 is free")
	}
	p.lineWith(t, "k:499 is held by the test")
}

// A terminal that understands nothing gets lines, as a pipe does.
func TestWatchOnADumbTerminalWritesLines(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.hold(t)
	x := s.terminal(t, "sh", "-c", `export TERM=dumb; exec "$REDLOCK" watch --interval 50ms`)
	x.expect(t, "k is held by the test")
	x.typed(t, ctrlC)
	assert.Zero(t, x.end(t))
	assert.NotContains(t, x.out.String(), "\x1b")
}
