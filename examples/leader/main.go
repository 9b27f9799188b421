// Command leader lets one of several workers lead while the others wait. If the leader is
// shut down, the next worker leads at once. If the leader cannot renew its lease, because a
// majority of the nodes is out of reach, it steps down before the lease ends, and waits
// again.
//
//	go run -C examples ./leader
//	go run -C examples ./leader -for 1m -addrs host1:6379,host2:6379,host3:6379
//
// On its own nodes the program makes the outage itself. On yours, stop a majority of them
// while it runs, and start them again.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/examples/internal/nodes"
)

const (
	workers = 4
	// lease is how long there is no leader after a leader has died.
	lease = 2 * time.Second
	pause = 20 * time.Millisecond // between two pieces of work
)

func main() {
	addrs := flag.String("addrs", "", nodes.Usage)
	least := flag.Duration("for", 0, "run for this `time` at least")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	n, err := nodes.Start(*addrs)
	if err == nil {
		err = run(ctx, os.Stdout, n, *least)
		n.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// worker is one copy of the service.
type worker struct {
	name    string
	rl      *redlock.Redlock
	key     string
	journal *journal
	report  func(format string, args ...any)
}

// serve leads whenever it is this worker's turn, until ctx ends.
func (w *worker) serve(ctx context.Context) error {
	// With fencing each term has a number greater than all before it.
	m := w.rl.Mutex(w.key, redlock.WithFencing())
	// Lead waits as long as it takes until the leader has gone and the nodes are back. It renews
	// the lease while this process is alive and reaches a majority, and releases the lock when
	// this worker is shut down. After a loss it stands in line again.
	err := m.Lead(ctx, func(ctx context.Context, term *redlock.Lock) error {
		w.report("%s leads, term %d", w.name, term.Fence())
		err := w.lead(ctx, term.Fence())
		if errors.Is(err, redlock.ErrLost) {
			w.report("%s steps down: %v", w.name, err)
		}
		return err
	})
	if ctx.Err() != nil {
		w.report("%s is shut down", w.name)
		return nil
	}
	return fmt.Errorf("%s: %w", w.name, err) // waiting would not help: rights, credentials
}

// lead does the leader's work until it must not go on. It never resigns.
func (w *worker) lead(ctx context.Context, term uint64) error {
	for {
		// ctx ends when this worker is shut down. It also ends with the lease, by a timer of this
		// process: even if no node can be reached, when another worker may become the leader.
		select {
		case <-ctx.Done():
			return context.Cause(ctx) // ErrLost, if that is why
		case <-time.After(pause):
		}
		// A process may be suspended right here and wake up when another leads. No check before
		// the write would help; the journal refuses the write, and says ErrLost.
		if err := w.journal.write(term, w.name); err != nil {
			return err
		}
	}
}

// journal is what the leader writes to. It stands for a database.
type journal struct {
	mu    sync.Mutex
	terms []term
}

type term struct {
	number  uint64
	leader  string
	entries int
}

// write refuses a leader whose term is over once a later one has written.
func (j *journal) write(number uint64, leader string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	last := len(j.terms) - 1
	switch {
	case last < 0 || number > j.terms[last].number:
		j.terms = append(j.terms, term{number, leader, 1})
	case number < j.terms[last].number:
		return fmt.Errorf("%w: term %d is over", redlock.ErrLost, number)
	case leader != j.terms[last].leader:
		return fmt.Errorf("two leaders in term %d: %s and %s", number, leader, j.terms[last].leader)
	default:
		j.terms[last].entries++
	}
	return nil
}

// last returns how many terms there were so far, and the last of them.
func (j *journal) last() (int, term) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.terms) == 0 {
		return 0, term{}
	}
	return len(j.terms), j.terms[len(j.terms)-1]
}

func run(ctx context.Context, out io.Writer, n *nodes.Nodes, least time.Duration) error {
	var (
		start = time.Now()
		j     journal
		lines = log.New(out, "", 0)
	)
	report := func(format string, args ...any) {
		lines.Printf("%5.2fs  %s", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
	lost := make(chan struct{}, 1)
	opts := &redlock.Options{
		TTL: lease,
		Hooks: &redlock.Hooks{Lost: func(context.Context, redlock.LostInfo) {
			select {
			case lost <- struct{}{}:
			default: // no receiver; a hook must not block
			}
		}},
	}
	key := "example-leader-" + rand.Text()[:8] // runs of this program do not meet
	g, ctx := errgroup.WithContext(ctx)
	shutDown := make(map[string]context.CancelFunc)
	for i := range workers {
		// One for each, as if each were a process.
		rl, err := redlock.Open(ctx, n.Addrs, opts)
		if err != nil {
			return err
		}
		defer rl.Close()
		w := &worker{name: fmt.Sprintf("worker-%d", i+1), rl: rl, key: key, journal: &j, report: report}
		working, cancel := context.WithCancel(ctx)
		defer cancel()
		shutDown[w.name] = cancel
		g.Go(func() error { return w.serve(working) })
	}
	g.Go(func() error {
		defer func() {
			for _, cancel := range shutDown {
				cancel()
			}
		}()
		// next waits until somebody has worked for a while in a later term.
		next := func(after int) (terms int, leader string) {
			for ctx.Err() == nil {
				if terms, t := j.last(); terms > after && t.entries >= 10 {
					return terms, t.leader
				}
				time.Sleep(pause)
			}
			return after, ""
		}
		terms, leader := next(0)
		if ctx.Err() == nil {
			shutDown[leader]()
		}
		terms, _ = next(terms)
		if n.Cluster != nil {
			report("a majority of the nodes hangs")
			select {
			case <-lost: // an earlier one
			default:
			}
			for _, node := range n.Cluster.Nodes()[:3] {
				node.Hang()
			}
			select {
			case <-lost:
			case <-ctx.Done():
			}
			report("the nodes go on")
			for _, node := range n.Cluster.Nodes()[:3] {
				node.Resume()
			}
			next(terms)
		}
		select {
		case <-time.After(least - time.Since(start)):
		case <-ctx.Done():
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return err
	}
	for _, t := range j.terms {
		fmt.Fprintf(out, "term %d: %s, %d entries\n", t.number, t.leader, t.entries)
	}
	want := 2
	if n.Cluster != nil {
		want = 3
	}
	if len(j.terms) < want {
		return fmt.Errorf("%d terms, of %d at least", len(j.terms), want)
	}
	return nil
}
