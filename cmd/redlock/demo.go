package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/redlocktest"
)

const (
	demoNodes = 5

	controlMost = 2 * time.Second
	joinMost    = 20 * time.Second // for workers to finish once the time is up
	tidyMost    = 3 * time.Second
)

// demoConfig is what a user may choose.
type demoConfig struct {
	addrs    []string // empty: nodes of our own
	workers  int
	duration time.Duration
	ttl      time.Duration
}

func demoCommand() *cobra.Command {
	var (
		c     demoConfig
		looks look
	)
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch a lock keep a counter right while nodes die and hang",
		Long: `Watch a lock keep a counter right while nodes die and hang.

Several workers, each with connections of its own as if it were a process of its
own, increment one counter: read it, work for a while, write it back plus one. Only
the lock keeps them from losing each other's updates. Meanwhile nodes are killed and
hung and brought back, never more than a minority at a time (fewer of them if --ttl is
long for the --duration), and a worker crashes while it holds the lock. In the end the same workers do it without the lock, to show
what would have been lost.

The five nodes run inside this program; nothing needs to be installed. With --addrs
the same workers use your servers instead, and whatever you do to these meanwhile is
in the votes.

A node that comes back may not vote for the time of a lease, for it might have forgotten
a lock. If the node that keeps the wait queue goes away, the queue moves to another one;
then a worker may be passed by one that came later, and waits longer. Keys with
"redlock-demo:" in their names are removed from the nodes at the end; the memory marks
stay.

With --web the demo is a page to open in a browser, and goes on until Ctrl-C: there you
break the nodes yourself, or pause the holder of the lock.

Exit status: 0 if no update was lost under the lock, 1 if one was or the demo could
not run, 2 if a flag or address breaks a rule. Ctrl-C ends the demo early, with a
summary.`,
		Example: `  redlock demo
  redlock demo --workers 8 --duration 30s
  redlock demo --web
  redlock demo --addrs 10.0.0.1:6379,10.0.0.2:6379,10.0.0.3:6379
  redlock demo --json | jq 'select(.event == "summary")'`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	// Not from the environment, which is for locks in use: a demo is a load on the servers.
	addrs := f.StringSlice("addrs", nil, "run against these `servers` instead of embedded nodes: host:port, or redis://, rediss:// or unix:// URLs, separated by commas")
	f.IntVar(&c.workers, "workers", 4, "how many `workers` compete, from 2 to 64")
	f.DurationVar(&c.duration, "duration", 8*time.Second, "how long they do, from 500ms to 1h; the control run without the lock comes on top")
	f.DurationVar(&c.ttl, "ttl", 2*time.Second, "the lock's lease, from 100ms to 1h; it is renewed while a worker is alive")
	f.BoolVar(&looks.plain, "plain", false, "no colours, and ASCII only, as in a pipe")
	f.BoolVar(&looks.noColor, "no-color", false, "no colours, as with $NO_COLOR")
	f.BoolVar(&looks.json, "json", false, "one JSON object per line instead of the timeline")
	page := webFlag(cmd)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := page.misplaced(args, true); err != nil {
			return err
		}
		return noArgs(cmd, args)
	}
	for _, name := range []string{"addrs", "workers", "duration", "ttl"} {
		if err := cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions); err != nil {
			panic(err)
		}
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c.addrs = cleanAddrs(*addrs)
		if i := withPassword(c.addrs); i >= 0 {
			return &usageError{fmt.Errorf("the %s address of --addrs has a password, which every user of this machine could read: "+
				"the demo runs on servers without one", ordinal(i+1))}
		}
		if page.asked() {
			return webDemo(cmd, c, page)
		}
		if err := c.check(); err != nil {
			return &usageError{err}
		}
		return runDemo(cmd.Context(), c, newTimeline(cmd.OutOrStdout(), looks))
	}
	return cmd
}

// check reports every broken rule, with the value that breaks it.
func (c *demoConfig) check() error {
	var broken []string
	bad := func(format string, args ...any) { broken = append(broken, fmt.Sprintf(format, args...)) }
	if c.workers < 2 || c.workers > 64 {
		bad("--workers is %d: must be from 2 to 64", c.workers)
	}
	if c.duration < 500*time.Millisecond || c.duration > time.Hour {
		bad("--duration is %v: must be from 500ms to 1h", c.duration)
	}
	if c.ttl < 100*time.Millisecond || c.ttl > time.Hour {
		bad("--ttl is %v: must be from 100ms to 1h", c.ttl)
	}
	if broken == nil {
		return nil
	}
	return errors.New(strings.Join(broken, "; "))
}

// crashTTL is the lease of the holder that crashes: short enough for the others to
// get the lock again within the demo.
func (c *demoConfig) crashTTL() time.Duration {
	return min(c.ttl, max(100*time.Millisecond, c.duration/6)).Truncate(time.Millisecond)
}

// demo is one run.
type demo struct {
	demoConfig
	key     string
	cluster *redlocktest.Cluster // nil: somebody else's servers
	nodes   []string             // names
	quorum  int
	out     *timeline
	counter *counter
	crash   chan struct{} // one token: whoever takes it crashes while holding the lock

	crashOver chan struct{} // closed by the first grant after the crash

	mu      sync.Mutex
	tally   tally
	crashed *crash    // nil until there is one
	latest  time.Time // of grants, or the beginning

	comebacks map[int]comeback // of nodes
}

// tally is what the workers did; the crashed one's acquisition is in it.
type tally struct {
	acquired    int
	leasesLost  int
	worstWait   time.Duration
	behindCrash time.Duration // the worst wait that met the crashed holder's lease
	votes       []time.Duration
}

// crash is an acquisition that nobody will release.
type crash struct {
	worker string
	at     time.Time
	until  time.Time     // its lease is valid before this
	over   bool          // there was a next grant
	next   time.Duration // from until to the next grant; negative if the lock is broken
}

// runDemo runs the demo. It returns an error if an update was lost, or if there was
// nothing to see.
func runDemo(ctx context.Context, c demoConfig, out *timeline) error {
	d := &demo{demoConfig: c, out: out, counter: new(counter), crash: make(chan struct{}, 1), crashOver: make(chan struct{}), comebacks: make(map[int]comeback)}
	d.key = "redlock-demo:" + randomHex()
	if len(c.addrs) == 0 {
		cluster, addrs, err := startCluster(demoNodes)
		if err != nil {
			return fmt.Errorf("the demo could not run: %w", err)
		}
		defer cluster.Close()
		d.cluster, d.addrs = cluster, addrs
	}
	observer, err := observe(d.addrs, c.ttl)
	if err == nil {
		defer observer.Close()
		err = begin(ctx, observer)
	}
	if err != nil {
		return fmt.Errorf("the demo could not run: %w", err)
	}
	d.nodes, d.quorum = observer.Names(), observer.Quorum()

	out.begin(d)
	failure := d.compete(ctx, observer)
	s := d.summary()
	s.Interrupted = ctx.Err() != nil
	s.LeftOn = d.tidy(ctx, observer)
	if failure == nil && !s.Interrupted {
		s.Control = d.control(ctx)
		s.Interrupted = ctx.Err() != nil
	}
	err = s.judge(failure)
	if s.OK = err == nil; err != nil {
		s.Error = oneLine(err)
	}
	out.emit(s)
	return errors.Join(err, out.failure())
}

// observe is for what a demo shows of its nodes, of which some are away for most of the time.
func observe(addrs []string, ttl time.Duration) (*admin.Nodes, error) {
	return admin.Open(addrs, &admin.Options{TTL: ttl, Timeout: max(20*time.Millisecond, ttl/10)})
}

// begin is nil as soon as a majority answers; nodes on a busy machine may need longer than they are given.
func begin(ctx context.Context, observer *admin.Nodes) (err error) {
	for range 10 {
		if _, err = observer.Inspect(ctx, "redlock-demo"); !errors.Is(err, admin.ErrNoQuorum) {
			return err
		}
	}
	return err
}

// startCluster starts embedded nodes.
func startCluster(n int) (cluster *redlocktest.Cluster, addrs []string, err error) {
	cluster, err = redlocktest.Start(n)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if r := recover(); r != nil { // Addrs panics where it may not listen
			cluster.Close()
			err = fmt.Errorf("embedded nodes: %v", r)
		}
	}()
	return cluster, cluster.Addrs(), nil
}

// compete lets the workers loose, and the faults, until the time is up or ctx ends.
func (d *demo) compete(ctx context.Context, observer *admin.Nodes) error {
	d.latest = time.Now()
	timed, cancel := context.WithTimeout(ctx, d.duration)
	defer cancel()
	group, running := errgroup.WithContext(timed)
	for i := range d.workers {
		w := &worker{demo: d, name: fmt.Sprintf("worker-%d", i+1)}
		group.Go(func() error { return w.run(running) })
	}
	group.Go(func() error { return d.misfortunes(running) })
	group.Go(func() error { d.watch(running, observer); return nil })
	group.Go(func() error { d.followLine(running, observer); return nil })

	joined := make(chan error, 1)
	go func() { joined <- group.Wait() }()
	<-running.Done()
	select {
	case err := <-joined:
		return err
	case <-time.After(joinMost):
		return fmt.Errorf("the workers did not stop within %v", joinMost)
	}
}

// watch tells why nothing is to be seen, when that is so.
func (d *demo) watch(ctx context.Context, observer *admin.Nodes) {
	const patience = 2 * time.Second
	var told time.Time // since when nobody got it, as told
	for sleep(ctx, patience/8) {
		d.mu.Lock()
		since := d.latest
		if c := d.crashed; c != nil && c.until.After(since) {
			since = c.until
		}
		d.mu.Unlock()
		if since.Equal(told) || time.Since(since) < patience {
			continue
		}
		told = since
		e := &stalled{For: ms(time.Since(since))}
		status, _ := observer.Inspect(ctx, d.key) // of each node there is an error, too
		for i, n := range status.Nodes {
			if n.Err != nil {
				e.Away = append(e.Away, d.label(i))
			}
		}
		d.mu.Lock()
		for i := range d.nodes {
			if d.comebacks[i].barred(d.ttl) {
				e.Barred = append(e.Barred, d.label(i))
			}
		}
		d.mu.Unlock()
		d.out.emit(e)
	}
}

// granted notes a grant to a worker that began to wait at start, and says whether it
// is the first after the crash.
func (d *demo) granted(start, now time.Time, outcomes []redlock.Outcome) (firstAfterCrash bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tally.acquired++
	d.latest = now
	if v, ok := voteTime(outcomes, d.quorum); ok {
		d.tally.votes = append(d.tally.votes, v)
	}
	d.waited(start, now)
	if c := d.crashed; c != nil && !c.over {
		c.over, c.next = true, now.Sub(c.until)
		close(d.crashOver)
		return true
	}
	return false
}

// waited notes a wait; the caller holds mu.
func (d *demo) waited(start, now time.Time) {
	worst := &d.tally.worstWait
	if c := d.crashed; c != nil && start.Before(c.until) && now.After(c.at) {
		worst = &d.tally.behindCrash
	}
	*worst = max(*worst, now.Sub(start))
}

// gaveUp notes a wait that the end of the demo cut short.
func (d *demo) gaveUp(start, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waited(start, now)
}

func (d *demo) lostLease() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tally.leasesLost++
}

// tidy removes the key from all nodes, those that are still away included, and
// returns the labels of the nodes that do not confirm it. There the lease ends it.
func (d *demo) tidy(ctx context.Context, observer *admin.Nodes) (leftOn []string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyMost)
	defer cancel()
	gone := make([]bool, len(d.nodes)) // by each node's last answer
	for {
		// Whether a majority confirms is of no interest: we look at each node.
		_, _ = observer.ForceRelease(ctx, d.key, admin.Anything())
		s, _ := observer.Inspect(ctx, d.key)
		leftOn = []string{}
		for i := range d.nodes {
			if i < len(s.Nodes) && s.Nodes[i].Err == nil {
				gone[i] = s.Nodes[i].Value == ""
			}
			if !gone[i] {
				leftOn = append(leftOn, d.label(i))
			}
		}
		if len(leftOn) == 0 || !sleep(ctx, 100*time.Millisecond) {
			return leftOn
		}
	}
}

// control is the same without the lock.
func (d *demo) control(ctx context.Context) *control {
	length := min(d.duration/4, controlMost)
	d.out.emit(&controlStarted{Duration: ms(length)})
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	var c counter
	var all sync.WaitGroup
	for range d.workers {
		all.Go(func() {
			for ctx.Err() == nil {
				_ = unlocked{}.Do(ctx, func(context.Context, *redlock.Lock) error {
					_, err := c.increment(context.Background(), nil)
					return err
				})
				sleep(ctx, idleTime())
			}
		})
	}
	all.Wait()
	made, value := c.read()
	return &control{Duration: ms(length), Increments: made, Counter: value, Lost: made - value}
}

func (d *demo) summary() *summary {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.tally
	made, value := d.counter.read()
	s := &summary{
		Acquisitions: t.acquired, Increments: made, Counter: value, Lost: made - value,
		LeasesLost: t.leasesLost, WorstWait: ms(t.worstWait), WorstWaitCrash: ms(t.behindCrash),
		Embedded: d.cluster != nil,
	}
	if n := len(t.votes); n > 0 {
		slices.Sort(t.votes)
		s.MedianVote, s.WorstVote = ms(t.votes[n/2]), ms(t.votes[n-1])
	}
	if c := d.crashed; c != nil {
		s.Crash = &crashSummary{Worker: c.worker, Lease: ms(d.crashTTL()), Over: c.over, NextGrant: ms(c.next)}
	}
	return s
}

// judge turns the summary into what the command returns.
func (s *summary) judge(failure error) error {
	var errs []error
	if s.Lost != 0 {
		errs = append(errs, fmt.Errorf("%d of %d updates were lost under the lock", s.Lost, s.Increments))
	}
	if c := s.Crash; c != nil && c.NextGrant < 0 {
		errs = append(errs, fmt.Errorf("the lock was granted %v before the lease of %s was over", -time.Duration(c.NextGrant), c.Worker))
	}
	if failure != nil {
		errs = append(errs, fmt.Errorf("the demo could not go on: %w", failure))
	} else if s.Increments == 0 && !s.Interrupted {
		errs = append(errs, errors.New("the demo could not run: no worker got to increment the counter; give it a longer --duration, and see what 'redlock check' says of the nodes"))
	}
	return errors.Join(errs...)
}

// label is a node's short name in the timeline.
func (d *demo) label(i int) string { return nodeLabel(i, len(d.nodes)) }

// voteTime is how long it took until a quorum had granted.
func voteTime(outcomes []redlock.Outcome, quorum int) (time.Duration, bool) {
	var grants []time.Duration
	for _, o := range outcomes {
		if o.Vote == redlock.VoteGranted {
			grants = append(grants, o.Elapsed)
		}
	}
	if len(grants) < quorum {
		return 0, false
	}
	slices.Sort(grants)
	return grants[quorum-1], true
}

// sleep returns false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

func randomHex() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
