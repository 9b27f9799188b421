// Command sharing shows locks that several hold at a time. Workers read a page that is now and
// then rebuilt, call an outside service that bears four calls at a time, and make ids with a
// worker number that nobody else has. At the end the program checks that no reader saw half
// a page, that there were never more than four calls, and that no id was made twice.
//
//	go run -C examples ./sharing
//	go run -C examples ./sharing -addrs host1:6379,host2:6379,host3:6379
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/examples/internal/nodes"
)

const (
	workers = 6
	rounds  = 4
	calls   = 4
	numbers = 1024 // as many as an id has room for
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

// world is what the workers share. It stands for what lies outside of the programs.
type world struct {
	name string // with which its keys begin

	head, body atomic.Int64 // of a page, which belong together
	reads      atomic.Int64
	torn       atomic.Int64

	busy, most atomic.Int64 // calls of the service

	mu    sync.Mutex
	ids   map[int64]bool
	twice int
}

// worker is one process.
type worker struct {
	rl *redlock.Redlock
	*world
}

// read may run beside other readers, and never beside a rebuild.
func (w *worker) read(ctx context.Context) error {
	return w.rl.Mutex(w.name+":page").Shared().Do(ctx, func(context.Context, *redlock.Lock) error {
		head := w.head.Load()
		time.Sleep(time.Millisecond)
		if w.body.Load() != head {
			w.torn.Add(1)
		}
		w.reads.Add(1)
		return nil
	})
}

// rebuild has the page alone.
func (w *worker) rebuild(ctx context.Context) error {
	return w.rl.Mutex(w.name+":page").Do(ctx, func(context.Context, *redlock.Lock) error {
		version := w.head.Add(1)
		time.Sleep(time.Millisecond)
		w.body.Store(version)
		return nil
	})
}

// call takes one of the service's places. Which one does not matter here.
func (w *worker) call(ctx context.Context) error {
	return w.rl.Semaphore(w.name+":service", calls).Do(ctx, func(context.Context, *redlock.Lock) error {
		n := w.busy.Add(1)
		defer w.busy.Add(-1)
		for most := w.most.Load(); n > most && !w.most.CompareAndSwap(most, n); most = w.most.Load() {
		}
		time.Sleep(2 * time.Millisecond)
		return nil
	})
}

// makeIDs holds a worker number for as long as the process makes ids. The number is part of
// each id, so the processes need not talk about them. Whoever loses the lock must stop: the
// number may be another's then.
func (w *worker) makeIDs(ctx context.Context, stop <-chan struct{}) error {
	return w.rl.Semaphore(w.name+":worker-numbers", numbers).Do(ctx, func(ctx context.Context, lock *redlock.Lock) error {
		// The number may have been another's before, so ids go on from the time, which is ahead of all that were made.
		for id := int64(lock.Permit())<<48 | time.Now().UnixMilli(); ; id++ {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-stop:
				return nil
			case <-time.After(2 * time.Millisecond):
			}
			w.mu.Lock()
			if w.ids[id] {
				w.twice++
			}
			w.ids[id] = true
			w.mu.Unlock()
		}
	})
}

func (w *worker) work(ctx context.Context, i int) error {
	stop, made := make(chan struct{}), make(chan error, 1)
	go func() { made <- w.makeIDs(ctx, stop) }()
	var errs []error
	for round := range rounds {
		if i == round%workers {
			errs = append(errs, w.rebuild(ctx))
		}
		errs = append(errs, w.read(ctx), w.call(ctx))
	}
	close(stop)
	return errors.Join(append(errs, <-made)...)
}

func run(ctx context.Context, out io.Writer, n *nodes.Nodes) error {
	shared := &world{name: "example-sharing-" + rand.Text()[:8], ids: make(map[int64]bool)} // runs of this program do not meet
	errs := make([]error, workers)
	var running sync.WaitGroup
	for i := range workers {
		// One for each, as if each were a process. In a process all share one. The pauses are
		// those of an outage, in which waiters poll; otherwise they wait in the lock's queue.
		// The nodes are in this program, and a busy machine must not look like an outage.
		rl, err := redlock.Open(ctx, n.Addrs, &redlock.Options{RetryMin: 10 * time.Millisecond, RetryMax: 100 * time.Millisecond, NodeTimeout: 2 * time.Second})
		if err != nil {
			return err
		}
		defer rl.Close()
		w := &worker{rl, shared}
		running.Go(func() { errs[i] = w.work(ctx, i) })
	}
	running.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d reads beside %d rebuilds, %d torn\n", shared.reads.Load(), shared.head.Load(), shared.torn.Load())
	fmt.Fprintf(out, "at most %d of %d calls at a time\n", shared.most.Load(), calls)
	fmt.Fprintf(out, "ids made twice: %d\n", shared.twice)
	if shared.torn.Load() > 0 || shared.most.Load() > calls || shared.twice > 0 {
		return errors.New("a lock did not hold")
	}
	return nil
}
