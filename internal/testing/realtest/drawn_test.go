package realtest_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/longtest"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/quorumlock/redlock/redlocktest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// What a proxy says in the place of a node, drawn at random, while the node restarts and forgets what another holds.

var (
	drawnFirst = flag.Uint64("drawn.first", 1, "the first seed of what proxies say in the place of a node")
	drawnCount = flag.Int("drawn.count", 0, "how many seeds (default 200, and 50 on real servers; with long tests 2,000 and 500)")
)

// drawnTexts are what proxies, services and servers say that is no answer.
var drawnTexts = []string{
	"-ERR Connection refused", "-ERR Connection reset by peer", "-ERR max requests limit exceeded", "-upstream failure", "-ERR upstream connect error or disconnect/reset before headers",
	"-no upstream host", "-ERR server closed connection", "-ERR timed out", "-Error", "-ERR", "-",
	"-LOADING Redis is loading the dataset in memory", "-BUSY Redis is busy running a script.", "-MASTERDOWN Link with MASTER is down", "-TRYAGAIN Multiple keys request during rehashing of slot",
	"-CLUSTERDOWN The cluster is down", "-MOVED 866 127.0.0.1:1", "-READONLY You can't write against a read only replica.", "-NOREPLICAS Not enough good replicas to write.",
	"-NOAUTH Authentication required.", "-WRONGPASS invalid username-password pair or user is disabled.", "-NOPERM this user has no permissions to run the 'info' command",
	"-ERR unknown command 'INFO'", "-ERR unknown command 'x', with args beginning with: ", "-ERR unsupported command", "-ERR max number of clients reached",
	"-OOM command not allowed when used memory > 'maxmemory'.", "-MISCONF Errors writing to the AOF file: No space left on device", "-EXECABORT Transaction discarded because of previous errors.",
	"-ERR invalid DB index", "+OK", "+PONG", "+QUEUED", ":0", ":1", "+",
}

// drawnQuestions are what is asked of a node.
var drawnQuestions = map[string][]string{
	"INFO server": {"INFO", "server"}, "INFO replication": {"INFO", "replication"}, "INFO commandstats": {"INFO", "commandstats"}, "TIME": {"TIME"}, "GET": {"GET", ""}, "EVALSHA": {"EVALSHA"},
}

// drawn is one draw.
type drawn struct {
	seed          uint64
	question      string
	kind          string
	text          string
	cut           float64       // where an answer is cut
	hold          time.Duration // how long one is silent
	when          string        // the restart, seen from the greeting of the node: before, in, after
	restartAt     int           // it comes at this command
	begin, length int           // of the fault, in commands
	forgets       bool          // all; else what came after the node was copied
	opened        bool          // the second client, by Open
	far           bool          // that client is far from the node, and locks other keys at the same time
}

var drawnKinds = []string{"text", "text", "text", "text", "empty", "cut", "cut and hung up", "another's", "nil", "silence", "late", "stale", "hung up"}

func draw(seed uint64) drawn {
	r := rand.New(rand.NewPCG(seed, 61))
	d := drawn{seed: seed}
	d.question = []string{"INFO server", "INFO replication", "INFO commandstats", "TIME", "GET", "EVALSHA"}[r.IntN(6)]
	d.kind = drawnKinds[r.IntN(len(drawnKinds))]
	switch d.kind {
	case "text":
		d.text = drawnTexts[r.IntN(len(drawnTexts))] + "\r\n"
	case "empty":
		d.text = []string{"$0\r\n\r\n", "*0\r\n"}[r.IntN(2)]
	case "nil":
		d.text = []string{"$-1\r\n", "*-1\r\n"}[r.IntN(2)]
	}
	d.cut = r.Float64()
	d.hold = []time.Duration{5, 50, 500, 5000}[r.IntN(4)] * time.Millisecond
	d.when = []string{"before", "in", "after"}[r.IntN(3)]
	switch d.when {
	case "in":
		d.restartAt = 1 + r.IntN(9)
	case "after":
		d.restartAt = r.IntN(7)
	}
	d.begin = max(0, d.restartAt+r.IntN(9)-4)
	d.length = []int{1, 2, 3, 5, 9, 20, 1000}[r.IntN(7)]
	d.forgets = r.IntN(3) > 0
	d.opened = r.IntN(2) == 0
	d.far = r.IntN(4) == 0
	return d
}

func (d *drawn) String() string {
	return fmt.Sprintf("seed %d: %s, %s (%q, cut at %.2f, %v) for commands %d to %d; restart %s the greeting, at %d; forgets all: %v; Open: %v; far: %v",
		d.seed, d.question, d.kind, d.text, d.cut, d.hold, d.begin, d.begin+d.length-1, d.when, d.restartAt, d.forgets, d.opened, d.far)
}

// asks reports whether these words are the draw's question.
func (d *drawn) asks(words []string, mark string) bool {
	name := strings.ToUpper(words[0])
	switch d.question {
	case "GET":
		return name == "GET" && words[1] == mark
	case "EVALSHA":
		return name == "EVALSHA" || name == "EVAL"
	case "TIME":
		return name == "TIME"
	default:
		return name == "INFO" && len(words) == 2 && strings.EqualFold("INFO "+words[1], d.question)
	}
}

// drawnWorld is three nodes, of which the first has a proxy.
type drawnWorld struct {
	front   *front
	prefix  string
	first   func(t *testing.T) *redlock.Redlock
	second  func(t *testing.T, opened bool) (*redlock.Redlock, error)
	last    func(value string) // has node 2 hold the resource; empty: not
	copies  func()             // node 0
	restart func(forgets bool)
	ttl     time.Duration
	tally   *drawnTally
}

// drawnTally says what became of draws, which prove nothing where nothing was forgotten and asked for.
type drawnTally struct {
	mu                    sync.Mutex
	all, barred, deceived int
}

func (c *drawnTally) add(barred, deceived bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all++
	if barred {
		c.barred++
	}
	if deceived {
		c.deceived++
	}
}

// counts is to be called first, and looks at the end.
func counts(t *testing.T) *drawnTally {
	c := new(drawnTally)
	t.Cleanup(func() {
		t.Logf("%d draws; in %d a grant of the node that forgot was not counted; %d deceive for a second", c.all, c.barred, c.deceived)
		if !t.Failed() && !t.Skipped() {
			require.Greater(t, c.barred, c.all/4, "the draws show nothing")
		}
	})
	return c
}

// others are the questions whose answers another one may be given.
var drawnOthers = map[string]string{"INFO server": "INFO replication", "INFO replication": "INFO server", "INFO commandstats": "INFO server", "TIME": "GET", "GET": "INFO server", "EVALSHA": "TIME"}

func (w *drawnWorld) words(question string) []string {
	words := append([]string(nil), drawnQuestions[question]...)
	if question == "GET" {
		words[1] = w.prefix + "redlock:memory"
	}
	return words
}

// remark is what the proxy says to one of the draw's questions.
func (w *drawnWorld) remark(d *drawn, words []string, before map[string]string) remark {
	switch d.kind {
	case "text", "empty", "nil":
		return remark{instead: d.text}
	case "cut":
		return remark{change: func(a string) string { return cutAnswer(a, d.cut) }}
	case "cut and hung up":
		return remark{change: func(a string) string { return a[:int(d.cut*float64(len(a)))] }, hangUp: true}
	case "hung up":
		return remark{change: func(string) string { return "" }, hangUp: true}
	case "another's":
		b := &backend{p: w.front}
		defer b.close()
		return remark{instead: b.ask(w.words(drawnOthers[d.question]))}
	case "silence", "late":
		return remark{hold: d.hold, late: d.kind == "late"}
	case "stale":
		return remark{instead: before[strings.ToUpper(strings.Join(words, " "))]} // the node's own where there was none
	}
	panic(d.kind)
}

// cutAnswer leaves out the end of an answer, whose frame stays whole.
func cutAnswer(a string, at float64) string {
	switch a[0] {
	case '$':
		_, text, ok := strings.Cut(a, "\r\n")
		if !ok || text == "" {
			return a
		}
		text = text[:int(at*float64(len(text)-2))]
		return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text)
	case '*':
		if parts := strings.SplitN(a, "\r\n", 4); len(parts) == 4 && parts[1][0] == '$' {
			return "*1\r\n" + parts[1] + "\r\n" + parts[2] + "\r\n"
		}
		return "*0\r\n"
	default:
		return a[:1] + "\r\n"
	}
}

// run makes the draw, and returns what is wrong.
func (w *drawnWorld) run(t *testing.T, d *drawn, pause func(i int) time.Duration, rounds int) (wrong string) {
	if d.far {
		w.front.far = 15 * time.Millisecond
	}
	a := w.first(t)
	var b *redlock.Redlock
	var opened chan error
	begin := func() {
		opened = make(chan error, 1)
		if !d.opened {
			var err error
			b, err = w.second(t, false)
			require.NoError(t, err)
			return
		}
		opened <- func() (err error) { b, err = w.second(t, true); return err }()
	}
	if d.when == "after" {
		begin()
		if b == nil {
			return "" // the machine is busy
		}
		lock, err := b.Mutex("another").TryAcquire(t.Context())
		if err != nil {
			return ""
		}
		waitForVotes(t, lock)
		_ = lock.Release(t.Context())
	}
	w.copies()
	w.last("of another")
	held, err := a.Mutex(resource).TryAcquire(t.Context())
	if err != nil {
		return "" // likewise
	}
	w.last("")

	before := make(map[string]string)
	direct := &backend{p: w.front}
	for q := range drawnQuestions {
		if words := w.words(q); q != "EVALSHA" {
			before[strings.ToUpper(strings.Join(words, " "))] = direct.ask(words)
		}
	}
	direct.close()
	var once sync.Once
	var mu sync.Mutex
	var restartedAt time.Time
	restart := func() {
		once.Do(func() {
			w.front.lost()
			w.restart(d.forgets)
			mu.Lock()
			restartedAt = time.Now()
			mu.Unlock()
		})
	}
	if d.restartAt == 0 {
		restart()
	}
	w.front.say(func(n int, words []string) remark {
		if n >= d.restartAt {
			restart()
		}
		if n >= d.begin && n < d.begin+d.length && d.asks(words, w.prefix+"redlock:memory") {
			return w.remark(d, words, before)
		}
		return remark{}
	})
	barred, deceived := false, false
	defer func() { w.tally.add(barred, deceived) }()
	for i := 0; i < rounds && held.Validity() > 0; i++ {
		if b == nil {
			begin()
		}
		if i == 3 {
			restart() // if not so many commands came
		}
		if b != nil {
			asked := time.Now()
			var others sync.WaitGroup
			for i := range 3 {
				if d.far {
					others.Go(func() { _ = given(b.Mutex(fmt.Sprint("another ", i)).TryAcquire(t.Context())) })
				}
			}
			lock, err := b.Mutex(resource).TryAcquire(t.Context())
			others.Wait()
			if left := held.Validity(); err == nil && left > 0 {
				mu.Lock()
				since := asked.Sub(restartedAt)
				mu.Unlock()
				if !d.deceives(since) {
					return fmt.Sprintf("two holders, with %v and %v left, %v after the restart; the second's votes: %v", left, lock.Validity(), since, lock.Outcomes())
				}
				deceived = true
				_ = lock.Release(t.Context())
			}
			if q := (*redlock.QuorumError)(nil); errors.As(err, &q) && len(q.Outcomes) == 3 {
				barred = barred || q.Outcomes[0].Vote == redlock.VoteBarred
			}
		}
		select {
		case <-time.After(pause(i)):
		case <-t.Context().Done():
		}
	}
	w.front.say(nil)
	_ = held.Release(t.Context())
	if w.ttl == 0 {
		return ""
	}
	if b == nil {
		begin()
	}
	if b == nil {
		return fmt.Sprintf("Open fails when all is well: %v", <-opened)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*w.ttl)
	defer cancel()
	if _, err := b.Mutex(resource).Acquire(ctx); err != nil {
		return fmt.Sprintf("not granted when all is well: %v", err)
	}
	return ""
}

// deceives reports whether a draw deceives by what docs/safety.md names: for a second after the identity was asked for,
// a conversation that goes on with another process behind the proxy, whose data has the mark and not the lock, or of
// which the proxy says so.
func (d *drawn) deceives(since time.Duration) bool {
	return d.when != "before" && since <= time.Second && (!d.forgets || d.question == "GET" && d.kind == "stale")
}

// drawnSeeds are the seeds from first on; few unless the tests are to be long, or a flag says how many.
func drawnSeeds(t *testing.T, few int) (first uint64, n int) {
	n = few
	if longtest.On() {
		n *= 10
	}
	if *drawnCount > 0 {
		n = *drawnCount
	}
	t.Logf("-drawn.first=%d -drawn.count=%d", *drawnFirst, n)
	return *drawnFirst, n
}

// Whatever a proxy says in the place of a node that restarts and forgets, to whichever question, there are not two
// holders, and when the proxy says no more than the node does the lock is granted.
func TestWhateverAProxySays(t *testing.T) {
	t.Parallel()
	first, n := drawnSeeds(t, 200)
	const shards = 4
	tally := counts(t)
	for shard := range uint64(shards) {
		t.Run(fmt.Sprint(shard), func(t *testing.T) {
			t.Parallel()
			for seed := first + shard; seed < first+uint64(n); seed += shards {
				d := draw(seed)
				synctest.Test(t, func(t *testing.T) {
					t.Cleanup(func() { time.Sleep(time.Hour) }) // virtual time stops with the test
					w := virtualWorld(t)
					w.tally = tally
					if wrong := w.run(t, &d, func(i int) time.Duration { return min(time.Millisecond<<i, 500*time.Millisecond) }, 60); wrong != "" {
						t.Errorf("%v\n%s\n%s", &d, wrong, w.front.told())
					}
				})
			}
		})
	}
}

func virtualWorld(t *testing.T) *drawnWorld {
	c := redlocktest.NewCluster(t, 3)
	w := &drawnWorld{ttl: 10 * time.Second}
	o := redlock.Options{TTL: w.ttl}
	c.Client(0, func(o *redis.Options) {
		dial := o.Dialer
		w.front = newFront(t, func(ctx context.Context) (net.Conn, error) { return dial(ctx, "", "") })
	})
	w.first = func(t *testing.T) *redlock.Redlock { return clientOf(t, c, o) }
	w.second = func(t *testing.T, opened bool) (*redlock.Redlock, error) {
		clients := c.Clients()
		clients[0] = c.Client(0, func(o *redis.Options) { o.Dialer = w.front.pipe })
		return newOn(t, o, clients...), nil
	}
	w.last = func(value string) {
		if value == "" {
			c.Node(2).Del(resource)
		} else {
			c.Node(2).Set(resource, value, 0)
		}
	}
	w.copies = c.Node(0).DetachReplica
	w.restart = func(forgets bool) {
		if forgets {
			c.Node(0).Restart(redlocktest.LoseKeys)
		} else {
			c.Node(0).Failover()
		}
	}
	return w
}

// The same on real servers, of which each is used by many draws, each under a prefix of its own.
func TestWhateverAProxySaysOfRealServers(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	first, n := drawnSeeds(t, 50)
	const shards = 4
	tally := counts(t)
	for shard := range uint64(shards) {
		t.Run(fmt.Sprint(shard), func(t *testing.T) {
			t.Parallel()
			servers := realredis.StartN(t, 3)
			for seed := first + shard; seed < first+uint64(n); seed += shards {
				d := draw(seed)
				t.Run(fmt.Sprint(seed), func(t *testing.T) {
					w := realWorld(t, servers, seed)
					w.tally = tally
					if wrong := w.run(t, &d, func(i int) time.Duration { return min(time.Millisecond<<i, 32*time.Millisecond) }, 7); wrong != "" {
						t.Errorf("%v\n%s\n%s", &d, wrong, w.front.told())
					}
				})
			}
		})
	}
}

func realWorld(t *testing.T, servers []*realredis.Server, seed uint64) *drawnWorld {
	w := &drawnWorld{prefix: fmt.Sprintf("%d:", seed)}
	o := redlock.Options{TTL: 20 * time.Second, NodeTimeout: 500 * time.Millisecond, KeyPrefix: w.prefix}
	p, addr := frontOf(t, servers[0])
	w.front = p
	w.first = func(t *testing.T) *redlock.Redlock { return openAt(t, addrsOf(servers), o) }
	addrs := []string{addr, servers[1].Addr(), servers[2].Addr()}
	w.second = func(t *testing.T, opened bool) (*redlock.Redlock, error) {
		if opened {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			rl, err := openOn(ctx, addrs, &o)
			if err == nil {
				t.Cleanup(func() { _ = rl.Close() })
			}
			return rl, err
		}
		var clients []redis.UniversalClient
		for _, addr := range addrs {
			clients = append(clients, clientOfAddr(t, addr, ""))
		}
		return newOn(t, o, clients...), nil
	}
	ask := func(i int, words ...any) {
		c := servers[i].Client(t, impatient)
		defer c.Close()
		if err := c.Do(t.Context(), words...).Err(); err != nil && !errors.Is(err, redis.Nil) {
			require.NoError(t, err)
		}
	}
	w.last = func(value string) {
		if value == "" {
			ask(2, "DEL", w.prefix+resource)
		} else {
			ask(2, "SET", w.prefix+resource, value)
		}
	}
	w.copies = func() { ask(0, "SAVE") }
	w.restart = func(forgets bool) {
		if forgets {
			ask(0, "FLUSHALL") // and what was saved of former draws is of other prefixes
			ask(0, "SAVE")
		}
		require.NoError(t, servers[0].Restart())
	}
	return w
}
