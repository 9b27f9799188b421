package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/quorumlock/redlock/lockset"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

// What locks that several hold, sets of locks and adoptions cost a server, and how long those
// wait who want them. No other library has them on independent servers, so there is nothing to
// compare them with but a plain lock.

func primitivesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "primitives",
		Short: "Measures shared locks, semaphores, sets of locks and adoption: the server's time, and waits",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p := &primitives{out: cmd.OutOrStdout(), cycles: 2000, waits: 30, readers: 10_000, contestFor: 5 * time.Second}
			return p.measure(cmd.Context())
		},
	}
}

// primitives measures on servers of its own.
type primitives struct {
	out     io.Writer
	cycles  int // of each kind
	waits   int // of each kind
	readers int // behind a writer, and for five permits
	// contestFor is for how long some take a lock again and again.
	contestFor time.Duration
	servers    []*realredis.Server
}

func (p *primitives) measure(ctx context.Context) (err error) {
	if p.servers, err = realredis.LaunchN(ctx, nodeCount); err != nil {
		return err
	}
	defer closeServers(p.servers)
	fmt.Fprintln(p.out, "| script | us of a server's time |\n|---|---|")
	if err := p.costs(ctx); err != nil {
		return err
	}
	fmt.Fprintln(p.out, "\n| who waits | median | longest | of |\n|---|---|---|---|")
	for _, f := range []func(context.Context) error{p.writerAmongReaders, p.setOfBusyKeys, p.lastPermits, p.turns, p.crowds, p.minorityAway} {
		if err := f(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (p *primitives) open(ctx context.Context, ttl time.Duration) (*redlock.Redlock, error) {
	return redlock.Open(ctx, addrsOf(p.servers), &redlock.Options{TTL: ttl, NodeTimeout: time.Second})
}

// costs asks the first server how long it worked for a command.
func (p *primitives) costs(ctx context.Context) error {
	rl, err := p.open(ctx, time.Minute)
	if err != nil {
		return err
	}
	defer rl.Close()
	n := p.cycles
	exclusive := func(i int) *redlock.Mutex { return rl.Mutex(fmt.Sprint("cost-", i)) }
	semaphore := func(permits int) func(int) locker {
		return func(i int) locker {
			return rl.Semaphore(fmt.Sprint("permits-", permits, "-", i%(n/permits)), permits)
		}
	}
	for _, kind := range []struct {
		name string
		of   func(int) locker
	}{
		{plain, func(i int) locker { return exclusive(i) }},
		{"shared", func(i int) locker { return exclusive(i).Shared() }},
		{fmt.Sprintf("shared by %d", n), func(int) locker { return exclusive(0).Shared() }},
		{"permit, of 5", semaphore(5)},
		{"permit, of 100", semaphore(100)},
	} {
		if err := p.costOfCycle(ctx, kind.name, n, kind.of); err != nil {
			return fmt.Errorf("%s: %w", kind.name, err)
		}
	}
	return p.costOfAdopt(ctx, n, exclusive)
}

func (p *primitives) costOfCycle(ctx context.Context, name string, n int, of func(int) locker) error {
	locks := make([]*redlock.Lock, n)
	releases := 1
	if name == plain {
		releases = costAtOnce
	}
	steps := []struct {
		what     string
		together int
		do       func(i int) error
	}{
		{"acquire", 1, func(i int) (err error) { locks[i], err = of(i).TryAcquire(ctx); return err }},
		{"extend", 1, func(i int) error { return locks[i].Extend(ctx, time.Minute) }},
		{"release", releases, func(i int) error { return locks[i].Release(ctx) }},
	}
	for _, step := range steps {
		if err := p.cost(ctx, name+": "+step.what, n, step.together, step.do); err != nil {
			return err
		}
	}
	return nil
}

func (p *primitives) costOfAdopt(ctx context.Context, n int, of func(int) *redlock.Mutex) error {
	locks, tokens := make([]*redlock.Lock, n), make([]string, n)
	for i := range n {
		var err error
		if locks[i], err = of(i).TryAcquire(ctx); err != nil {
			return err
		}
		tokens[i] = locks[i].Detach()
	}
	err := p.cost(ctx, "adopt", n, 1, func(i int) (err error) { locks[i], err = of(i).Adopt(ctx, tokens[i]); return err })
	for _, l := range locks {
		err = errors.Join(err, l.Release(ctx))
	}
	return err
}

const (
	plain      = "plain" // exclusive locks, the releases of which may go in one command
	costAtOnce = 32
)

// cost does something n times, 32 at once, and prints what each took the first server. What
// scripts call counts as theirs. One at a time would cost more: the server is cold each time.
// together is how many one command may do.
func (p *primitives) cost(ctx context.Context, name string, n, together int, do func(i int) error) error {
	if _, err := once(ctx, p.servers[0].Addr(), func(ctx context.Context, c *redis.Client) (string, error) {
		return c.ConfigResetStat(ctx).Result()
	}); err != nil {
		return err
	}
	var work errgroup.Group
	work.SetLimit(costAtOnce)
	for i := range n {
		work.Go(func() error { return do(i) })
	}
	if err := work.Wait(); err != nil {
		return err
	}
	time.Sleep(100 * time.Millisecond) // a majority has answered; this server may be none of it
	info, err := once(ctx, p.servers[0].Addr(), func(ctx context.Context, c *redis.Client) (string, error) {
		return c.Info(ctx, "commandstats").Result()
	})
	if err != nil {
		return err
	}
	least := int64(n / 2 / together)
	calls, usec := statOf(info, "cmdstat_evalsha")
	if calls < least {
		calls, usec = statOf(info, "cmdstat_set")
	}
	if calls < least || calls == 0 {
		return fmt.Errorf("%s: the server counts %d calls for %d", name, calls, n)
	}
	if together > 1 {
		_, more := statOf(info, "cmdstat_eval") // until the server knows the script
		fmt.Fprintf(p.out, "| %s | %.1f |\n", name, float64(usec+more)/float64(n))
		return nil
	}
	fmt.Fprintf(p.out, "| %s | %.1f |\n", name, float64(usec)/float64(calls))
	return nil
}

func statOf(info, name string) (calls, usec int64) {
	for field := range strings.SplitSeq(infoField(info, name), ",") {
		key, value, _ := strings.Cut(field, "=")
		switch n, _ := strconv.ParseInt(value, 10, 64); key {
		case "calls":
			calls = n
		case "usec":
			usec = n
		}
	}
	return calls, usec
}

func (p *primitives) tell(name string, took []time.Duration) {
	slices.Sort(took)
	fmt.Fprintf(p.out, "| %s | %.1f ms | %.1f ms | %d |\n", name, took[len(took)/2].Seconds()*1000, took[len(took)-1].Seconds()*1000, len(took))
}

// busy has goroutines of four clients hold locks without a pause, until stop.
func (p *primitives) busy(ctx context.Context, n int, of func(rl *redlock.Redlock, i int) locker, hold time.Duration) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	var clients []*redlock.Redlock
	stop = func() {
		cancel()
		work.Wait()
		for _, rl := range clients {
			_ = rl.Close()
		}
	}
	for range 4 {
		rl, err := p.open(ctx, 10*time.Second)
		if err != nil {
			stop()
			return nil, err
		}
		clients = append(clients, rl)
	}
	for i := range n {
		m := of(clients[i%len(clients)], i)
		work.Go(func() {
			for ctx.Err() == nil {
				_ = m.Do(ctx, func(context.Context, *redlock.Lock) error { time.Sleep(hold); return nil })
			}
		})
	}
	time.Sleep(500 * time.Millisecond)
	return stop, nil
}

// repeat acquires and releases n times, and tells how long each acquire took.
func repeat(ctx context.Context, n int, acquire func() (release func(context.Context) error, err error)) (took []time.Duration, err error) {
	for range n {
		start := time.Now()
		release, err := acquire()
		if err != nil {
			return nil, err
		}
		took = append(took, time.Since(start))
		if err := release(ctx); err != nil {
			return nil, err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return took, nil
}

// whileBusy measures how long one waits who wants what others keep busy.
func (p *primitives) whileBusy(ctx context.Context, others int, theirs func(*redlock.Redlock, int) locker, hold time.Duration,
	what string, acquire func(*redlock.Redlock) (func(context.Context) error, error)) error {
	stop, err := p.busy(ctx, others, theirs, hold)
	if err != nil {
		return err
	}
	defer stop()
	rl, err := p.open(ctx, 10*time.Second)
	if err != nil {
		return err
	}
	defer rl.Close()
	took, err := repeat(ctx, p.waits, func() (func(context.Context) error, error) { return acquire(rl) })
	if err == nil {
		p.tell(what, took)
	}
	return err
}

func (p *primitives) writerAmongReaders(ctx context.Context) error {
	return p.whileBusy(ctx, 24, func(rl *redlock.Redlock, _ int) locker { return rl.Mutex("page").Shared() }, 5*time.Millisecond,
		"a writer among 24 readers, of 5 ms each and without a pause",
		func(rl *redlock.Redlock) (func(context.Context) error, error) {
			return releaser(rl.Mutex("page").Acquire(ctx))
		})
}

func (p *primitives) setOfBusyKeys(ctx context.Context) error {
	keys := []string{"a", "b", "c"}
	return p.whileBusy(ctx, 12, func(rl *redlock.Redlock, i int) locker { return rl.Mutex(keys[i%3]) }, 10*time.Millisecond,
		"all of three keys that 12 keep busy, for 10 ms each",
		func(rl *redlock.Redlock) (func(context.Context) error, error) {
			held, err := lockset.New(rl.Mutex("a"), rl.Mutex("b"), rl.Mutex("c")).Acquire(ctx)
			if err != nil {
				return nil, err
			}
			return held.Release, nil
		})
}

// lastPermits: 18 of 20 are taken, and one who wants another has it at once.
func (p *primitives) lastPermits(ctx context.Context) error {
	rl, err := p.open(ctx, time.Minute)
	if err != nil {
		return err
	}
	defer rl.Close()
	for range 18 {
		if _, err := rl.Semaphore("calls", 20).TryAcquire(ctx); err != nil {
			return err
		}
	}
	failed := 0
	took, err := repeat(ctx, p.waits, func() (func(context.Context) error, error) {
		for {
			lock, err := rl.Semaphore("calls", 20).TryAcquire(ctx)
			if errors.Is(err, redlock.ErrHeld) {
				failed++
				continue
			}
			return releaser(lock, err)
		}
	})
	if err == nil {
		p.tell(fmt.Sprintf("a permit of 20 of which 18 are taken; %d attempts in vain", failed), took)
	}
	return err
}
