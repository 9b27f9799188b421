// Package node runs the Redlock clients of node beside this library, on the same nodes and keys. It has
// no code but tests, which need node and npm.
package node

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/longtest"
	"github.com/quorumlock/redlock/internal/testing/realredis"
)

const (
	key   = "orders:42"
	lease = 2 * time.Second
	hold  = 20 * time.Millisecond
)

var libraries = []string{"redlock", "@sesamecare-oss/redlock"}

// turn is what a client tells of one attempt, in nanoseconds of the clock that all processes share:
// it held the lock from Got to End, or gave up at Failed.
type turn struct {
	Asked, Got, End, Failed int64
	Why                     string

	of string
}

func (t turn) String() string { return fmt.Sprintf("%s from %d to %d", t.of, t.Got, t.End) }

func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// install returns a folder in which node finds the libraries.
func install(t *testing.T) string {
	t.Helper()
	realredis.Need(t)
	if !longtest.On() {
		t.Skip("it asks a registry for packages of node: set REDLOCK_LONG_TESTS=1")
	}
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("the Redlock clients of node are not tried: %s is not installed", program)
		}
	}
	logging.Disable()
	dir := t.TempDir()
	for _, name := range []string{"package.json", "turns.mjs"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	npm := exec.CommandContext(t.Context(), "npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts")
	npm.Dir = dir
	said, err := npm.CombinedOutput()
	require.NoError(t, err, "npm install: %s", said)
	return dir
}

// record collects turns.
type record struct {
	mu  sync.Mutex
	all []turn
}

func (r *record) add(t turn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, t)
}

// theirs runs a client of node until the time is up.
func (r *record) theirs(t *testing.T, dir, library, name string, addrs []string, rest, d time.Duration) {
	cmd := exec.CommandContext(t.Context(), "node", append([]string{"turns.mjs", library, key, //nolint:gosec // the program is ours
		strconv.FormatFloat(d.Seconds(), 'f', 1, 64), strconv.FormatInt(lease.Milliseconds(), 10), strconv.FormatInt(hold.Milliseconds(), 10), strconv.FormatInt(rest.Milliseconds(), 10)}, addrs...)...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.StdoutPipe()
	if !assert.NoError(t, err) || !assert.NoError(t, cmd.Start()) {
		return
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said := turn{of: name}
		if assert.NoError(t, json.Unmarshal(lines.Bytes(), &said), lines.Text()) {
			r.add(said)
		}
	}
	assert.NoError(t, cmd.Wait(), name)
}

// ours is a client of this library, in a process of its own as far as the nodes can see.
func (r *record) ours(t *testing.T, name string, addrs []string, rest, d time.Duration) {
	rl, err := redlock.Open(t.Context(), addrs, &redlock.Options{TTL: lease, Owner: name})
	if !assert.NoError(t, err) {
		return
	}
	defer rl.Close()
	m := rl.Mutex(key, redlock.WithMaxWait(10*time.Second))
	for end := time.Now().Add(d); time.Now().Before(end); {
		asked := monotonic()
		lock, err := m.Acquire(t.Context())
		if err != nil {
			r.add(turn{of: name, Asked: asked, Failed: monotonic(), Why: err.Error()})
			continue
		}
		got := monotonic()
		until := got + int64(lock.Validity())
		time.Sleep(hold) // the work
		r.add(turn{of: name, Asked: asked, Got: got, End: min(monotonic(), until)})
		_ = lock.Release(t.Context())
		time.Sleep(time.Duration(rand.Float64() * float64(rest))) //nolint:gosec // no secret
	}
}

// fail breaks a minority of the nodes, again and again: they hang, or are killed and come back with
// what they had.
func fail(ctx context.Context, servers []*realredis.Server, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // no secret
	for ctx.Err() == nil {
		var back []func()
		for _, i := range rng.Perm(len(servers))[:1+rng.IntN((len(servers)-1)/2)] {
			s := servers[i]
			if rng.IntN(2) == 0 {
				_ = s.Pause()
				back = append(back, func() { _ = s.Resume() })
			} else {
				s.Kill()
				back = append(back, func() { _ = s.Restart() })
			}
		}
		wait(ctx, time.Duration(500+rng.IntN(2000))*time.Millisecond)
		for _, b := range back {
			b()
		}
		wait(ctx, time.Duration(rng.IntN(1000))*time.Millisecond)
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// play runs clients of both kinds, each of which rests for up to that long between its turns, and returns the
// turns in order.
func play(t *testing.T, dir, library string, servers []*realredis.Server, theirs, ours int, rest, d time.Duration) []turn {
	t.Helper()
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr())
	}
	var r record
	var all sync.WaitGroup
	for i := range theirs {
		all.Go(func() { r.theirs(t, dir, library, fmt.Sprintf("theirs %d", i+1), addrs, rest, d) })
	}
	for i := range ours {
		all.Go(func() { r.ours(t, fmt.Sprintf("ours %d", i+1), addrs, rest, d) })
	}
	all.Wait()
	slices.SortFunc(r.all, func(a, b turn) int { return cmp.Compare(a.Got, b.Got) })
	return r.all
}

// tell logs how the turns were shared, and how long the lock was free between two of them, by whose came
// before and after. It fails the test where two turns overlap.
func tell(t *testing.T, what string, all []turn) (of map[string]int) {
	t.Helper()
	of = make(map[string]int)
	gaps, gaveUp := make(map[string][]time.Duration), make(map[string]int)
	var last turn
	for _, x := range all {
		kind := x.of[:len(x.of)-2]
		switch {
		case x.Failed != 0:
			gaveUp[kind]++
			continue
		case x.End <= x.Got:
			continue // it was over when it was granted, and the client knew
		}
		of[kind]++
		if last.of != "" {
			assert.GreaterOrEqual(t, x.Got, last.End, "two holders: %v, %v", last, x)
			from := last.of[:len(last.of)-2]
			gaps[from+" to "+kind] = append(gaps[from+" to "+kind], time.Duration(x.Got-last.End))
		}
		last = x
	}
	t.Logf("%s: turns %v, gave up %v", what, of, gaveUp)
	for _, between := range []string{"ours to ours", "ours to theirs", "theirs to ours", "theirs to theirs"} {
		if g := gaps[between]; len(g) > 0 {
			slices.Sort(g)
			t.Logf("  free from %s: %d times, median %v, longest %v", between, len(g), g[len(g)/2].Round(100*time.Microsecond), g[len(g)-1].Round(time.Millisecond))
		}
	}
	return of
}

// No two hold the lock at once, whatever minority of the nodes hangs or is killed.
func TestNoOverlapBesideNodeRedlock(t *testing.T) {
	dir := install(t)
	for i, library := range libraries {
		t.Run(library, func(t *testing.T) {
			servers := realredis.StartN(t, 5, realredis.AOF("always"))
			ctx, stop := context.WithCancel(t.Context())
			var failing sync.WaitGroup
			failing.Go(func() { fail(ctx, servers, uint64(i)+1) })
			// Without a rest one kind keeps the lock among its own clients, and few turns meet the other kind.
			all := play(t, dir, library, servers, 2, 2, 200*time.Millisecond, 30*time.Second)
			stop()
			failing.Wait()
			of := tell(t, "5 nodes that fail, 2 of each", all)
			assert.Positive(t, of["ours"])
			assert.Positive(t, of["theirs"])
		})
	}
}

// What each does to the other's waiting is told in docs/migrating.md; nothing here can be promised.
func TestWaitingBesideNodeRedlock(t *testing.T) {
	dir := install(t)
	for _, library := range libraries {
		t.Run(library, func(t *testing.T) {
			for _, c := range [][2]int{{1, 1}, {1, 4}, {4, 1}, {4, 4}, {4, 0}, {0, 4}} {
				servers := realredis.StartN(t, 3)
				tell(t, fmt.Sprintf("3 nodes, %d of theirs, %d of ours", c[0], c[1]), play(t, dir, library, servers, c[0], c[1], 0, 10*time.Second))
			}
		})
	}
}
