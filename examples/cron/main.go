// Command cron runs a job once per tick on one of many instances, as a service does that
// is deployed several times and has a timer in each copy. Instances have clocks that are
// a little apart, one of the runs fails and is taken over by another instance, and in the
// end the ledger shows that each tick was done exactly once.
//
//	go run ./examples/cron
//	go run ./examples/cron -addrs host1:6379,host2:6379,host3:6379
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/examples/internal/nodes"
)

const (
	instances = 4
	ticks     = 6
	interval  = 300 * time.Millisecond // an hour, in life

	// patience is how long an instance stays ready to take over from one that fails.
	patience = 2 * time.Second
	// lease must outlast the patience of the instance whose timer is latest. The job
	// itself may take longer: nobody asks for its tick any more by then.
	lease = 3 * patience
)

func main() {
	addrs := flag.String("addrs", "", nodes.Usage)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	n, err := nodes.Start(*addrs)
	if err == nil {
		err = run(ctx, os.Stdout, n)
		n.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// instance is one copy of the service.
type instance struct {
	name string
	rl   *redlock.Redlock
	job  func(by string, tick time.Time) error
	out  io.Writer
}

// onTick is called by each instance's own timer, on a goroutine of its own.
//
// The key names the tick, not the job. With one key for the job, the holder would have to
// keep it until all the others have asked and in time for the next tick, so a slow job, or a
// timer that is late, would make a tick run twice or not at all. A key for each tick
// has nothing to do with the next one. Ticks may then overlap if the job takes longer than
// the interval; a job that must not wraps its work in Do with a key of its own.
func (i *instance) onTick(ctx context.Context, tick time.Time) error {
	// Not TryAcquire: of several that ask at the same moment each may get the votes of a
	// minority, and all would be refused. In line, one of them gets the tick, and the
	// others stand by until it is clear that it did not fail at once.
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	lock, err := i.rl.Mutex("report:" + tick.Format(time.RFC3339Nano)).Acquire(waiting)
	switch {
	case errors.Is(err, redlock.ErrHeld):
		return nil // another has it
	case err != nil:
		return err // ErrNoQuorum: the nodes are down. Nobody ran this tick; tell somebody
	}
	if err := i.job(i.name, tick); err != nil {
		fmt.Fprintf(i.out, "%s  %s  failed: %v\n", tick.Format("05.0"), i.name, err)
		return lock.Release(ctx) // the next in line takes over
	}
	fmt.Fprintf(i.out, "%s  %s  done\n", tick.Format("05.0"), i.name)
	// Not released: an instance whose timer is late would find the tick free and run it
	// again. The lease ends by itself.
	//
	// An instance that dies in the middle of the job leaves the tick undone, and one that fails
	// after a part of it runs that part twice. No lock can know; a job for which that
	// matters notes in its own database, in its transaction, which ticks are done.
	return nil
}

// ledger counts what was done. It stands for whatever the job changes.
type ledger struct {
	mu     sync.Mutex
	done   map[time.Time]int
	failed bool
}

func (l *ledger) job(by string, tick time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.done) == 2 && !l.failed {
		l.failed = true
		return errors.New("disk full")
	}
	l.done[tick]++
	return nil
}

func run(ctx context.Context, out io.Writer, n *nodes.Nodes) error {
	out = &lines{w: out}
	l := &ledger{done: make(map[time.Time]int)}
	all := make([]*instance, instances)
	prefix := "example-cron-" + rand.Text()[:8] + ":" // runs of this program do not meet
	for i := range all {
		// One for each, as if each were a process. In a process all share one.
		rl, err := redlock.Open(ctx, n.Addrs, &redlock.Options{TTL: lease, KeyPrefix: prefix})
		if err != nil {
			return err
		}
		defer rl.Close()
		all[i] = &instance{name: fmt.Sprintf("instance-%d", i+1), rl: rl, job: l.job, out: out}
	}

	first := time.Now().Truncate(interval).Add(2 * interval)
	var running errgroup.Group
	for t := range ticks {
		tick := first.Add(time.Duration(t) * interval)
		for _, i := range all {
			running.Go(func() error {
				skew := mathrand.N(interval) // their clocks are not the same
				select {
				case <-time.After(time.Until(tick.Add(skew))):
					return i.onTick(ctx, tick)
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		}
	}
	if err := running.Wait(); err != nil {
		return err
	}
	for t := range ticks {
		if tick := first.Add(time.Duration(t) * interval); l.done[tick] != 1 {
			return fmt.Errorf("tick %s was done %d times", tick.Format("05.0"), l.done[tick])
		}
	}
	fmt.Fprintf(out, "%d instances, %d ticks, each done exactly once\n", instances, ticks)
	return nil
}

// lines keeps lines of several goroutines apart.
type lines struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
