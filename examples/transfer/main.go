// Command transfer moves money between accounts, each of which only offers get and set. Two
// accounts change together, so both must be locked; and of two transfers, one from a to b
// and one from b to a, neither may wait for the other for ever. The program does it first
// without locks, to show what goes wrong, then with a set of locks.
//
//	go run -C examples ./transfer
//	go run -C examples ./transfer -addrs host1:6379,host2:6379,host3:6379
package main

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/examples/internal/nodes"
	"github.com/quorumlock/redlock/lockset"
)

const (
	servers   = 3
	accounts  = 4
	opening   = 1000 // on each account
	transfers = 48

	// patience is how long a transfer may wait for its turn.
	patience = 20 * time.Second
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

// transfer moves an amount. It reads and writes both accounts, so it is right only if nobody
// else changes either of them meanwhile.
func (b *bank) transfer(ctx context.Context, from, to string, amount int) error {
	source, err := b.get(ctx, from)
	if err != nil {
		return err
	}
	if source < amount {
		return nil // refused
	}
	target, err := b.get(ctx, to)
	if err != nil {
		return err
	}
	// ctx ends when the first of the locks is lost, and then nothing more is sent. But locks are
	// no transaction: if the second write fails, the caller has to put the first one right.
	if err := b.set(ctx, from, source-amount); err != nil {
		return err
	}
	return b.set(ctx, to, target+amount)
}

// lockedTransfer is transfer with both accounts locked.
func (b *bank) lockedTransfer(ctx context.Context, rl *redlock.Redlock, from, to string, amount int) error {
	if from == to {
		return nil // a set refuses one key twice, and there is nothing to move
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// The order in which the accounts are named does not matter. With two nested calls of Do it
	// would: one who holds a and waits for b, and one who holds b and waits for a, would wait
	// until their deadlines. Transfers between other accounts go on meanwhile.
	both := lockset.New(rl.Mutex("example-account:"+from), rl.Mutex("example-account:"+to))
	return both.Do(ctx, func(ctx context.Context, _ lockset.Locks) error {
		return b.transfer(ctx, from, to, amount)
	})
}

// all makes all transfers at once, and returns how much money there is afterwards.
func (b *bank) all(do func(server int, from, to string) error) (total int, err error) {
	b.values = make(map[string]int)
	for a := range accounts {
		b.values[b.account(a)] = opening
	}
	var g errgroup.Group
	for i := range transfers {
		// Every pair of accounts in both directions, many times.
		from, to := i%accounts, (i+1+i/accounts%(accounts-1))%accounts
		g.Go(func() error { return do(i%servers, b.account(from), b.account(to)) })
	}
	err = g.Wait()
	for _, v := range b.values {
		total += v
	}
	return total, err
}

func (b *bank) account(i int) string { return fmt.Sprintf("%s-%d", b.name, i) }

func run(ctx context.Context, out io.Writer, n *nodes.Nodes) error {
	b := bank{name: rand.Text()[:8]} // runs of this program do not meet
	total, err := b.all(func(_ int, from, to string) error { return b.transfer(ctx, from, to, 100) })
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d accounts with %d each, %d transfers at once\n", accounts, opening, transfers)
	fmt.Fprintf(out, "without locks: %d in all\n", total)

	at := make([]*redlock.Redlock, servers)
	for i := range at {
		// One for each, as if each were a process. In a process all requests share one.
		if at[i], err = redlock.Open(ctx, n.Addrs, nil); err != nil {
			return err
		}
		defer at[i].Close()
	}
	total, err = b.all(func(server int, from, to string) error {
		return b.lockedTransfer(ctx, at[server], from, to, 100)
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "with locks:    %d in all\n", total)
	if total != accounts*opening {
		return fmt.Errorf("there were %d, and now there are %d", accounts*opening, total)
	}
	return nil
}

// bank is somebody else's system: each call is safe and takes a while, and there is nothing
// like a transaction.
type bank struct {
	name   string
	mu     sync.Mutex
	values map[string]int
}

func (b *bank) get(ctx context.Context, account string) (int, error) {
	if err := travel(ctx); err != nil {
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.values[account], nil
}

func (b *bank) set(ctx context.Context, account string, value int) error {
	if err := travel(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.values[account] = value
	return nil
}

func travel(ctx context.Context) error {
	select {
	case <-time.After(time.Millisecond):
		return ctx.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
