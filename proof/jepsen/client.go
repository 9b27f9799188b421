package jepsen

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
	"golang.org/x/sys/unix"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/history"
)

// clientEnv holds the job of a client process; it marks a process that this program started from its own binary.
const clientEnv = "REDLOCK_PROOF_CLIENT"

// The kinds of counters.
const (
	plain  = "plain"  // under the lock alone
	fenced = "fenced" // and in a store that refuses stale holders
)

// Sabotages, ways in which clients or the store may be broken on purpose.
const (
	noLock    = "nolock"    // clients do not lock
	noCompare = "nocompare" // release deletes whatever key is there
	overstay  = "overstay"  // holders take the lease for longer than it is
	noFence   = "nofence"   // the store refuses nobody
	noGuard   = "noguard"   // restarted nodes vote
)

// job is what a client process is to do.
type job struct {
	Client, Life int
	Dir          string
	Zero         int64    // of the run's clock
	Nodes        []string // the servers' addresses, by which all clients name them
	Ways         []string // this client's way to each
	Kinds        []string
	Counters     int // of each kind
	TTL          time.Duration
	NodeTimeout  time.Duration
	Guard        time.Duration
	Slice        time.Duration
	Seed         uint64
	Sabotage     string

	// Where clients of two versions take turns, programs of the older one do not read these.
	Old    bool // this life is the older version's
	Beside bool // locks of the kind mixed are on the keys of plain counters, which both versions use
}

// files are where a life of a client writes to. Each has its own, so that a line cut short by a kill is the last one.
func (j job) files() (calls, writes string) {
	return filepath.Join(j.Dir, fmt.Sprintf("calls-%d.%d.jsonl", j.Client, j.Life)), filepath.Join(j.Dir, fmt.Sprintf("writes-%d.%d.jsonl", j.Client, j.Life))
}

// What became of a write.
const (
	begun    = ""         // called; no more is known
	written  = "ok"       // acknowledged
	refused  = "refused"  // by the store: a greater fencing token was seen
	withheld = "withheld" // the client found its lease over, and did not write
)

// update is one read-modify-write of a counter.
type update struct {
	Client  int    `json:"client"`
	Key     string `json:"key"`
	Token   string `json:"token"`
	Fence   uint64 `json:"fence,omitempty"`
	Parent  string `json:"parent,omitempty"` // the token with which the value that was read had been written
	Value   int64  `json:"value"`            // that was to be written
	Until   int64  `json:"until"`            // the end of the lease, as known when it was checked
	Checked int64  `json:"checked"`
	Return  int64  `json:"return,omitempty"`
	Result  string `json:"result,omitempty"`
}

// tally is what a client says of itself while it runs, a line of JSON each time.
type tally struct {
	Grants   int64 `json:"grants"`
	Written  int64 `json:"written"`
	Refused  int64 `json:"refused"`
	Withheld int64 `json:"withheld"`
}

func (t *tally) add(o tally) {
	t.Grants, t.Written, t.Refused, t.Withheld = t.Grants+o.Grants, t.Written+o.Written, t.Refused+o.Refused, t.Withheld+o.Withheld
}

// ClientMain is the life of a client process, if this process is one; main and TestMain call it first. It does not return then.
func ClientMain() {
	text := os.Getenv(clientEnv)
	if text == "" {
		return
	}
	var j job
	err := json.Unmarshal([]byte(text), &j)
	if err == nil {
		err = runClient(j, os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "client %d: %v\n", j.Client, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// client is a process that keeps counters under locks.
type client struct {
	job
	clock clock
	rl    *redlock.Redlock
	raw   []*redis.Client // what rl uses
	store store
	calls *history.Writer
	log   *updateLog

	holds   sync.Map // token: *hold, of locks that renew themselves
	stopAt  atomic.Value
	grants  atomic.Int64
	written atomic.Int64
	refused atomic.Int64
	held    atomic.Int64 // back: withheld
}

func runClient(j job, in io.Reader, out io.Writer) error {
	logging.Disable()
	c := &client{job: j, clock: newClock(j.Zero), store: store{dir: filepath.Join(j.Dir, "counters"), deaf: j.Sabotage == noFence}}
	c.stopAt.Store("")
	calls, writes := j.files()
	callFile, err := os.OpenFile(calls, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer callFile.Close()
	writeFile, err := os.OpenFile(writes, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer writeFile.Close()
	c.calls, c.log = history.NewWriter(callFile), &updateLog{out: writeFile}

	if err := c.open(); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	go c.obey(in, stop)
	go c.tell(out)
	errs := make([]error, len(j.Kinds))
	var working sync.WaitGroup
	for i, kind := range j.Kinds {
		w := &worker{client: c, kind: kind, random: mathrand.New(mathrand.NewPCG(j.Seed, uint64(j.Client<<20|j.Life<<4|i)))}
		working.Go(func() {
			for ctx.Err() == nil && errs[i] == nil {
				errs[i] = w.cycle(ctx)
			}
			stop()
		})
	}
	working.Wait()
	errs = append(errs, c.rl.Close())
	for _, r := range c.raw {
		errs = append(errs, r.Close())
	}
	return errors.Join(errs...)
}

// open makes a Redlock on clients that reach each server by a way of their own and name it by its address, so that all clients wait in one line.
func (c *client) open() error {
	var nodes []redis.UniversalClient
	for i, addr := range c.Nodes {
		way := c.Ways[i]
		o := &redis.Options{
			Addr: addr,
			Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", way)
			},
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		}
		if c.Client%2 == 1 { // every other client has go-redis' defaults
			o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled, o.Protocol = -1, 1, true, 2
		}
		r := redis.NewClient(o)
		c.raw, nodes = append(c.raw, r), append(nodes, r)
	}
	rl, err := redlock.New(nodes, &redlock.Options{
		TTL: c.TTL, NodeTimeout: c.NodeTimeout, RestartGuard: max(c.Guard, 0), NoRestartGuard: c.Guard < 0, Owner: fmt.Sprintf("client %d.%d", c.Client, c.Life),
		Hooks: &redlock.Hooks{Extended: c.renewed},
	})
	c.rl = rl
	return err
}

// obey reads what the run wants of this client. It ends with the run, however that ends.
func (c *client) obey(in io.Reader, stop func()) {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		switch word, kind, _ := strings.Cut(lines.Text(), " "); word {
		case "end":
			stop()
		case "stop": // at the worst moment
			c.stopAt.Store(kind)
		}
	}
	os.Exit(3)
}

func (c *client) tell(out io.Writer) {
	enc := json.NewEncoder(out)
	for range time.Tick(200 * time.Millisecond) {
		if enc.Encode(tally{c.grants.Load(), c.written.Load(), c.refused.Load(), c.held.Load()}) != nil {
			return
		}
	}
}

// key is the counter to work on. Counters change with time, so that the search for an order of the calls of one key stays small.
func (w *worker) key(kind string) string {
	return fmt.Sprintf("%s-%d-%d", kind, w.clock.now()/int64(w.Slice), w.random.IntN(w.Counters))
}

// worker is a client's goroutine for counters of one kind.
type worker struct {
	*client
	kind   string
	random *mathrand.Rand
}

func (w *worker) chance(percent int) bool { return w.random.IntN(100) < percent }

func (w *worker) between(low, high time.Duration) time.Duration {
	return low + time.Duration(w.random.Int64N(int64(high-low)+1))
}

// lease is what a worker needs of a lock, and what a sabotaged one is.
type lease interface {
	Token() string
	Fence() uint64
	Until() time.Time
	Validity() time.Duration
	Extend(context.Context, time.Duration) error
	Release(context.Context) error
}

// hold is a lock while it is held, with the call that was written last about it.
type hold struct {
	lease
	key  string
	last atomic.Int64
}

// cycle acquires a lock, counts one up under it, and releases it.
func (w *worker) cycle(ctx context.Context) error {
	if w.kind == mixed {
		return w.mixedCycle(ctx)
	}
	key := w.key(w.kind)
	renewal := w.chance(1)
	h, err := w.acquire(ctx, key, renewal)
	if h == nil || err != nil {
		return err
	}
	if renewal {
		w.holds.Store(h.Token(), h)
		defer w.holds.Delete(h.Token())
	}
	if err := w.count(ctx, h, renewal); err != nil {
		return err
	}
	if err := w.release(h); err != nil {
		return err
	}
	time.Sleep(w.between(0, 10*time.Millisecond))
	return nil
}

func (w *worker) acquire(ctx context.Context, key string, renewal bool) (*hold, error) {
	opts := []redlock.LockOption{}
	if w.kind == fenced {
		opts = append(opts, redlock.WithFencing())
	}
	if renewal {
		opts = append(opts, redlock.WithRenewal())
	}
	m := w.rl.Mutex(key, opts...)
	ctx, cancel := context.WithTimeout(ctx, 5*w.TTL)
	defer cancel()
	acquire := m.Acquire
	if w.chance(20) || w.Sabotage == noCompare || w.Sabotage == noGuard {
		acquire = m.TryAcquire // who waits in line would wait until the lease is over, and not notice
	}
	op := history.Op{Client: w.Client, Kind: history.Acquire, Key: key, Call: w.clock.now()}
	var h *hold
	if w.Sabotage == noLock {
		h = &hold{lease: w.pretend(), key: key}
	} else if lock, err := acquire(ctx); err == nil {
		h = &hold{lease: lock, key: key}
	} else {
		op.Outcome, op.Err = history.Failed, reason(err)
	}
	op.Return = w.clock.now()
	if h == nil {
		if err := w.calls.Write(op); err != nil {
			return nil, err
		}
		time.Sleep(w.between(0, 20*time.Millisecond))
		return nil, nil
	}
	if w.Sabotage == overstay {
		h.lease = longer{h.lease, w.TTL}
	}
	w.grants.Add(1)
	op.Outcome, op.Token, op.Until = history.OK, h.Token(), w.clock.of(h.Until())
	if w.kind == fenced {
		op.Fence = h.Fence()
	}
	h.last.Store(op.Return)
	return h, w.calls.Write(op)
}

// count reads the counter and writes its successor, as a careful user would: it looks at its lease right before the write.
func (w *worker) count(ctx context.Context, h *hold, renewal bool) error {
	up := update{Client: w.Client, Key: h.key, Token: h.Token()}
	var r record
	var stale bool
	var err error
	if w.kind == fenced {
		up.Fence = h.Fence()
		r, stale, err = w.store.readFenced(h.key, up.Fence)
	} else {
		r, err = w.store.read(h.key)
	}
	if err != nil {
		return err
	}
	up.Parent, up.Value = r.Token, r.Value+1
	if err := w.work(ctx, h, renewal); err != nil {
		return err
	}
	up.Until = w.clock.of(h.Until())
	up.Checked = w.clock.now()
	switch {
	case stale:
		up.Result = refused
		w.refused.Add(1)
		return w.log.write(up)
	case h.Validity() <= 0:
		up.Result = withheld
		w.held.Add(1)
		return w.log.write(up)
	}
	if err := w.log.write(up); err != nil {
		return err
	}
	if w.stopAt.CompareAndSwap(w.kind, "") {
		stopSelf()
	}
	next := record{Value: up.Value, Token: up.Token}
	if w.kind == fenced {
		stale, err = w.store.writeFenced(h.key, next, up.Fence)
	} else {
		err = w.store.write(h.key, next)
	}
	if err != nil {
		return err
	}
	up.Return = w.clock.now()
	if stale {
		up.Result = refused
		w.refused.Add(1)
	} else {
		up.Result = written
		w.written.Add(1)
	}
	return w.log.write(up)
}

// work is what takes time between the read and the write: mostly little, sometimes a good part of the lease, which is then extended, by hand or
// by itself.
func (w *worker) work(ctx context.Context, h *hold, renewal bool) error {
	switch {
	case renewal:
		time.Sleep(w.between(w.TTL, w.TTL*3/2))
	case w.Sabotage == noCompare && w.chance(20):
		time.Sleep(h.Validity() + w.between(0, w.TTL/4))
	case w.Sabotage == noCompare:
		time.Sleep(w.between(0, w.TTL/2))
	case w.Sabotage == noGuard: // so that each loss of memory hits somebody
		time.Sleep(w.between(w.TTL*4/10, w.TTL*9/10))
	case w.chance(1):
		time.Sleep(w.between(w.TTL/2, w.TTL*9/10))
		return w.extend(ctx, h)
	case w.chance(8):
		time.Sleep(w.between(0, 20*time.Millisecond))
		return w.extend(ctx, h)
	default:
		time.Sleep(w.between(time.Millisecond, 8*time.Millisecond))
	}
	return nil
}

func (w *worker) extend(ctx context.Context, h *hold) error {
	op := history.Op{Client: w.Client, Kind: history.Extend, Key: h.key, Token: h.Token(), Call: w.clock.now(), Outcome: history.OK}
	err := h.Extend(ctx, w.TTL)
	op.Return = w.clock.now()
	switch {
	case err == nil:
		op.Until = w.clock.of(h.Until())
	case errors.Is(err, redlock.ErrLost) || errors.Is(err, redlock.ErrReleased):
		op.Outcome, op.Err = history.Failed, reason(err)
	default:
		op.Outcome, op.Err = history.Unknown, reason(err)
	}
	return w.calls.Write(op)
}

// renewed writes the extends that a lock makes by itself. When such a one was called is not told, so it may have been at any time since the last
// call about this lock.
func (c *client) renewed(_ context.Context, info redlock.ExtendInfo) {
	v, ok := c.holds.Load(info.Token)
	if !ok || !info.Renewal || info.Err != nil {
		return
	}
	h := v.(*hold)
	now := c.clock.now()
	op := history.Op{
		Client: c.Client, Kind: history.Extend, Key: h.key, Token: info.Token, Call: h.last.Swap(now), Return: now,
		Outcome: history.OK, Until: c.clock.of(h.Until()),
	}
	if err := c.calls.Write(op); err != nil {
		panic(err)
	}
}

// release writes that it calls before it does: a client that is killed meanwhile may have released or not.
func (w *worker) release(h *hold) error {
	op := history.Op{Client: w.Client, Kind: history.Release, Key: h.key, Token: h.Token(), Call: w.clock.now(), Outcome: history.Unknown}
	if err := w.calls.Write(op); err != nil {
		return err
	}
	if w.Sabotage == noCompare {
		for _, c := range w.raw {
			_ = c.Del(context.Background(), h.key).Err() // the sabotage need not succeed everywhere
		}
	}
	err := h.Release(context.Background())
	op.Return, op.Err = w.clock.now(), reason(err)
	switch {
	case err == nil:
		op.Outcome = history.OK
	case errors.Is(err, redlock.ErrNotHeld):
		op.Outcome = history.NotHeld
	}
	return w.calls.Write(op)
}

// reason is the first reason of an error; all that each node said would make the history long.
func reason(err error) string {
	if err == nil {
		return ""
	}
	for _, known := range []error{
		redlock.ErrHeld, redlock.ErrNoQuorum, redlock.ErrExpired, redlock.ErrNotHeld, redlock.ErrLost, redlock.ErrClosed, context.DeadlineExceeded, context.Canceled,
	} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return err.Error()
}

// stopSelf stops this process here, until somebody continues it. The signal is the thread's own, so nothing else is done before it stops.
func stopSelf() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGSTOP)
}

// updateLog writes updates, a line of JSON each in one piece.
type updateLog struct {
	mu  sync.Mutex
	out io.Writer
}

func (l *updateLog) write(up update) error {
	b, err := json.Marshal(up)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err = l.out.Write(append(b, '\n'))
	return err
}

func readUpdates(r io.Reader) (all []update, err error) {
	lines := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return all, nil // a line cut short, or nothing
		}
		if err != nil {
			return all, err
		}
		var up update
		if err := json.Unmarshal(bytes.TrimSpace(line), &up); err != nil {
			return all, fmt.Errorf("line %d: %w", n, err)
		}
		all = append(all, up)
	}
}

// pretended is the lease of a client that does not lock.
type pretended struct {
	token string
	until time.Time
	ttl   time.Duration
}

func (w *worker) pretend() *pretended {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return &pretended{token: hex.EncodeToString(b[:]), until: time.Now().Add(w.TTL), ttl: w.TTL}
}

func (p *pretended) Token() string                               { return p.token }
func (p *pretended) Fence() uint64                               { return uint64(p.until.UnixMicro()) }
func (p *pretended) Until() time.Time                            { return p.until }
func (p *pretended) Validity() time.Duration                     { return time.Until(p.until) }
func (p *pretended) Extend(context.Context, time.Duration) error { return nil }
func (p *pretended) Release(context.Context) error               { return nil }

// longer is a lease whose holder adds to it.
type longer struct {
	lease
	by time.Duration
}

func (l longer) Until() time.Time        { return l.lease.Until().Add(l.by) }
func (l longer) Validity() time.Duration { return l.lease.Validity() + l.by }
