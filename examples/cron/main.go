// Command cron runs a job once per tick on one of many instances. It stands for a service
// that is deployed several times and has a timer in each copy. The instances' clocks are a
// little apart. One run fails, and another instance takes over. At the end the program
// checks in a ledger that each tick was done exactly once.
//
//	go run -C examples ./cron
//	go run -C examples ./cron -addrs host1:6379,host2:6379,host3:6379
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	mathrand "math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/examples/internal/nodes"
)

const (
	instances = 4
	ticks     = 6
	interval  = 300 * time.Millisecond // an hour, in life

	// patience is how long an instance stays ready to take over from one that fails.
	patience = 4 * time.Second
	// lease must outlast the patience of the instance whose timer is latest. The job
	// itself may take longer: by then no instance asks for its tick any more.
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
	key  string // of the job
	job  func(ctx context.Context, tick time.Time) error
	log  *log.Logger
}

// onTick is called by each instance's own timer, on a goroutine of its own.
//
// The key names the tick, not the job. With one key for the job, the holder would have to
// keep it until all the others have asked and in time for the next tick, so a slow job, or a
// timer that is late, would make a tick run twice or not at all. A key for each tick
// has nothing to do with the next one. Ticks may then overlap if the job takes longer than
// the interval; a job that must not wraps its work in Do with a key of its own. Where a tick
// may be left out now and then, one key and WithMinHold are simpler: see docs/recipes.md.
func (i *instance) onTick(ctx context.Context, tick time.Time) {
	// Not TryAcquire: if several instances ask at the same moment one of them gets the lock
	// nearly always, but not surely. In the wait queue one of them gets it, and the others
	// stand by for a while in case it fails.
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	lock, err := i.rl.Mutex(i.key + ":" + tick.Format(time.RFC3339Nano)).Acquire(waiting)
	switch {
	case errors.Is(err, redlock.ErrHeld):
		return // another has it
	case err != nil:
		// The nodes are down, or too slow to tell whether another has it. This case needs an
		// alarm: perhaps no instance runs the tick.
		i.log.Printf("%s  %s  gives up: %v", tick.Format("05.0"), i.name, err)
		return
	}
	if err := i.job(ctx, tick); err != nil {
		i.log.Printf("%s  %s  failed: %v", tick.Format("05.0"), i.name, err)
		if err := lock.Release(ctx); err != nil { // the next waiter takes over
			i.log.Print(err) // it takes over when the lease has ended, if it still waits
		}
		return
	}
	i.log.Printf("%s  %s  done", tick.Format("05.0"), i.name)
	// Not released: an instance whose timer is late would find the tick free and run it
	// again. The lease ends by itself.
	//
	// An instance that dies in the middle of the job leaves the tick undone. If a run fails
	// half-way, the next one repeats that half. No lock can prevent this; if it matters, the
	// job records the ticks that are done in its own database, in its own transaction.
}

// ledger counts what was done. It stands for whatever the job changes.
type ledger struct {
	mu     sync.Mutex
	done   map[time.Time]int
	failed bool
}

func (l *ledger) job(_ context.Context, tick time.Time) error {
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
	logger := log.New(out, "", 0)
	l := &ledger{done: make(map[time.Time]int)}
	all := make([]*instance, instances)
	key := "example-report-" + rand.Text()[:8] // runs of this program do not meet
	for i := range all {
		// One for each, as if each were a process. In a process all share one.
		rl, err := redlock.Open(ctx, n.Addrs, &redlock.Options{TTL: lease})
		if err != nil {
			return err
		}
		defer rl.Close()
		all[i] = &instance{name: fmt.Sprintf("instance-%d", i+1), rl: rl, key: key, job: l.job, log: logger}
	}

	first := time.Now().Truncate(interval).Add(2 * interval)
	var running sync.WaitGroup
	for t := range ticks {
		tick := first.Add(time.Duration(t) * interval)
		for _, i := range all {
			running.Go(func() {
				// Clocks differ; and sometimes they do not, which is as bad.
				skew := time.Duration(t%2) * mathrand.N(interval)
				select {
				case <-time.After(time.Until(tick.Add(skew))):
					i.onTick(ctx, tick)
				case <-ctx.Done():
				}
			})
		}
	}
	running.Wait()
	for t := range ticks {
		if tick := first.Add(time.Duration(t) * interval); l.done[tick] != 1 {
			return fmt.Errorf("tick %s was done %d times", tick.Format("05.0"), l.done[tick])
		}
	}
	logger.Printf("%d instances, %d ticks, each done exactly once", instances, ticks)
	return nil
}
