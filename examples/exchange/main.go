// Command exchange swaps loyalty points for goods of which there are few. Many customers
// want them at the same moment, through several servers, and no more must be sold than are
// in stock. The program does it first without the lock, to show what goes wrong, then with
// it.
//
//	go run -C examples ./exchange
//	go run -C examples ./exchange -addrs host1:6379,host2:6379,host3:6379
//
// If both were in one table of a database, no lock would be needed: UPDATE ... SET stock = stock - 1
// WHERE stock > 0 does it. Here points and stock belong to two systems that offer only get
// and set, as other people's interfaces often do.
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
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/examples/internal/nodes"
)

const (
	servers   = 3
	customers = 40
	stock     = 12
	price     = 500

	// patience is how long a customer is kept waiting.
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

var (
	errSoldOut = errors.New("sold out")
	errPoor    = errors.New("not enough points")
)

// exchange gives a customer one of the goods for points. It reads, decides and writes. That
// is right only if no other call does so for the same goods meanwhile.
func exchange(ctx context.Context, goods, points *remote, item, customer string) error {
	left, err := goods.get(ctx, item)
	if err != nil {
		return err
	}
	if left == 0 {
		return errSoldOut
	}
	balance, err := points.get(ctx, customer)
	if err != nil {
		return err
	}
	if balance < price {
		return errPoor
	}
	// ctx ends when the lock is lost, and then nothing is sent. But a lock is no transaction: if
	// the second write fails, the customer has paid for nothing. Then the caller has to give the
	// points back.
	if err := points.set(ctx, customer, balance-price); err != nil {
		return err
	}
	return goods.set(ctx, item, left-1)
}

// buy is exchange, one customer at a time.
func buy(ctx context.Context, rl *redlock.Redlock, goods, points *remote, item, customer string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// The key names the thing that two calls must not change at once: the item. Items do not
	// wait for each other. Do serves the customers in order of arrival, whichever server they
	// came to. With random retries a late customer could be lucky.
	return rl.Mutex("example-item:"+item).Do(ctx, func(ctx context.Context, _ *redlock.Lock) error {
		return exchange(ctx, goods, points, item, customer)
	})
}

// sale is what came of it.
type sale struct {
	sold, refused, oversold int
}

// sell lets all customers come at once. try serves one of them, on one of the servers.
func sell(goods, points *remote, item string, try func(server int, customer string) error) (sale, error) {
	goods.values = map[string]int{item: stock}
	points.values = make(map[string]int)
	for c := range customers {
		points.values[fmt.Sprint("customer", c)] = 2 * price
	}
	var (
		mu sync.Mutex
		s  sale
		g  errgroup.Group
	)
	for c := range customers {
		g.Go(func() error {
			err := try(c%servers, fmt.Sprint("customer", c))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				s.sold++
			case errors.Is(err, errSoldOut):
				s.refused++
			default:
				return err
			}
			return nil
		})
	}
	err := g.Wait()
	s.oversold = max(0, s.sold-stock)
	return s, err
}

func run(ctx context.Context, out io.Writer, n *nodes.Nodes) error {
	var goods, points remote
	item := "teapot-" + rand.Text()[:8] // runs of this program do not meet
	s, err := sell(&goods, &points, item, func(_ int, customer string) error {
		return exchange(ctx, &goods, &points, item, customer)
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d in stock, %d customers\n", stock, customers)
	fmt.Fprintf(out, "without the lock: sold %d, refused %d, oversold %d\n", s.sold, s.refused, s.oversold)

	at := make([]*redlock.Redlock, servers)
	for i := range at {
		// One for each, as if each were a process. In a process all requests share one.
		if at[i], err = redlock.Open(ctx, n.Addrs, nil); err != nil {
			return err
		}
		defer at[i].Close()
	}
	s, err = sell(&goods, &points, item, func(server int, customer string) error {
		return buy(ctx, at[server], &goods, &points, item, customer)
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "with the lock:    sold %d, refused %d, oversold %d\n", s.sold, s.refused, s.oversold)
	if left := goods.values[item]; s.sold != stock || left != 0 {
		return fmt.Errorf("sold %d and has %d left, of %d", s.sold, left, stock)
	}
	return nil
}

// remote is somebody else's system: each call is safe and takes a while, and there is nothing
// like "if it is still what I read".
type remote struct {
	mu     sync.Mutex
	values map[string]int
}

func (r *remote) get(ctx context.Context, key string) (int, error) {
	if err := travel(ctx); err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.values[key], nil
}

func (r *remote) set(ctx context.Context, key string, value int) error {
	if err := travel(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.values[key] = value
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
