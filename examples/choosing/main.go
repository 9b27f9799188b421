// Command choosing sells from a small table of stock in six ways, and counts the sales that
// got lost. In each way a buyer reads how much is left, thinks, and writes what is left then.
// First nobody stops. Then a buyer stops between reading and writing, for longer than a lease
// lasts, as in a long garbage collection or on a suspended machine.
//
//	go run -C examples ./choosing
//
// The nodes of the lock run inside this program; with REDLOCK_ADDRS=host1:6379,... it uses
// yours. The table is in SQLite, in a temporary file; docs/choosing.md says which way is for
// what.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	_ "modernc.org/sqlite"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
)

const (
	// lease is short, so that a stop need not be long.
	lease = time.Second
	stock = 100
	// While one buyer stops, another one sells so many.
	salesMeanwhile = 3
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := show(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// shop is what a way of selling needs.
type shop struct {
	db    *sql.DB
	locks *redlock.Redlock
}

// way sells one piece. It calls think between reading and writing.
type way struct {
	name string
	sell func(ctx context.Context, s *shop, think func()) error
}

var ways = []way{
	{"nothing", sellUnguarded},
	{"one statement", sellInOneStatement},
	{"optimistic: a version", sellByVersion},
	{"pessimistic: a transaction", sellInTransaction},
	{"a lock", sellUnderLock},
	{"a lock with fencing", sellFenced},
}

// errChanged: somebody has written in between. Nothing was written; read again.
var errChanged = errors.New("changed in between")

// written tells whether an UPDATE ... WHERE found its row.
func written(r sql.Result, err error) error {
	if err != nil {
		return err
	}
	if n, err := r.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, errChanged)
	}
	return nil
}

func sellUnguarded(ctx context.Context, s *shop, think func()) error {
	var left int
	if err := s.db.QueryRowContext(ctx, `SELECT left FROM stock`).Scan(&left); err != nil {
		return err
	}
	think()
	return written(s.db.ExecContext(ctx, `UPDATE stock SET left = ?`, left-1))
}

// sellInOneStatement lets the database read and write. Nobody can come in between.
func sellInOneStatement(ctx context.Context, s *shop, think func()) error {
	think()
	return written(s.db.ExecContext(ctx, `UPDATE stock SET left = left - 1 WHERE left > 0`))
}

// sellByVersion writes only what nobody has changed since it was read, else starts again.
func sellByVersion(ctx context.Context, s *shop, think func()) error {
	for {
		var left, version int
		if err := s.db.QueryRowContext(ctx, `SELECT left, version FROM stock`).Scan(&left, &version); err != nil {
			return err
		}
		think()
		err := written(s.db.ExecContext(ctx, `UPDATE stock SET left = ?, version = version + 1 WHERE version = ?`, left-1, version))
		if !errors.Is(err, errChanged) {
			return err
		}
	}
}

// sellInTransaction has the table locked from before it reads until it has written. Others
// wait, however long it takes. In PostgreSQL it would be SELECT ... FOR UPDATE, and the row.
func sellInTransaction(ctx context.Context, s *shop, think func()) error {
	tx, err := s.db.BeginTx(ctx, nil) // BEGIN IMMEDIATE, see open
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after Commit
	var left int
	if err := tx.QueryRowContext(ctx, `SELECT left FROM stock`).Scan(&left); err != nil {
		return err
	}
	think()
	if err := written(tx.ExecContext(ctx, `UPDATE stock SET left = ?`, left-1)); err != nil {
		return err
	}
	return tx.Commit()
}

// sellUnderLock trusts the lock. It does not renew it, for a program that stops does not
// either.
func sellUnderLock(ctx context.Context, s *shop, think func()) error {
	lock, err := s.locks.Mutex("example-stock").Acquire(ctx)
	if err != nil {
		return err
	}
	defer lock.Release(ctx)
	return sellUnguarded(ctx, s, think)
}

// sellFenced shows its token when it reads: from then on, the table refuses writes with
// smaller ones. To check the token at the write alone would be too late, since the next
// holder may have read, and not yet written, when the late write comes.
func sellFenced(ctx context.Context, s *shop, think func()) error {
	for {
		err := sellFencedOnce(ctx, s, think)
		if !errors.Is(err, errChanged) {
			return err
		}
	}
}

func sellFencedOnce(ctx context.Context, s *shop, think func()) error {
	lock, err := s.locks.Mutex("example-stock", redlock.WithFencing()).Acquire(ctx)
	if err != nil {
		return err
	}
	defer lock.Release(ctx)
	var left int
	err = s.db.QueryRowContext(ctx, `UPDATE stock SET fence = ?1 WHERE fence < ?1 RETURNING left`, lock.Fence()).Scan(&left)
	if errors.Is(err, sql.ErrNoRows) {
		return errChanged
	}
	if err != nil {
		return err
	}
	think()
	return written(s.db.ExecContext(ctx, `UPDATE stock SET left = ? WHERE fence = ?`, left-1, lock.Fence()))
}

// outcome is what became of the sales.
type outcome struct {
	lost   int
	waited time.Duration // the longest sale of those that did not stop
}

// together lets four buyers sell five each. All of them read for the first time before any
// of them writes, if the way lets them.
func together(ctx context.Context, s *shop, w way) (outcome, error) {
	const buyers, sales = 4, 5
	var reading sync.WaitGroup
	reading.Add(buyers)
	all := make(chan struct{})
	go func() {
		reading.Wait()
		close(all)
	}()
	errs := make(chan error, buyers)
	for range buyers {
		go func() {
			var first sync.Once
			var err error
			for range sales {
				err = errors.Join(err, w.sell(ctx, s, func() {
					first.Do(func() {
						reading.Done()
						select {
						case <-all:
						case <-time.After(50 * time.Millisecond):
						}
					})
				}))
			}
			errs <- err
		}()
	}
	var err error
	for range buyers {
		err = errors.Join(err, <-errs)
	}
	return s.count(ctx, buyers*sales, err)
}

// oneStops lets a buyer read and stop. Another one sells meanwhile, as soon as it can. The
// first goes on when that is done, or if it has stopped for three leases and the other still
// waits.
func oneStops(ctx context.Context, s *shop, w way) (outcome, error) {
	stopped, goOn := make(chan struct{}), make(chan struct{})
	first := make(chan error, 1)
	go func() {
		var once sync.Once
		first <- w.sell(ctx, s, func() {
			once.Do(func() {
				close(stopped)
				select {
				case <-goOn:
				case <-time.After(3 * lease):
				}
			})
		})
	}()
	<-stopped
	var err error
	var waited time.Duration
	for range salesMeanwhile {
		began := time.Now()
		err = errors.Join(err, w.sell(ctx, s, func() {}))
		waited = max(waited, time.Since(began))
	}
	close(goOn)
	o, err := s.count(ctx, salesMeanwhile+1, errors.Join(err, <-first))
	o.waited = waited
	return o, err
}

// count compares what was sold with what is missing.
func (s *shop) count(ctx context.Context, sold int, err error) (outcome, error) {
	if err != nil {
		return outcome{}, err
	}
	var left int
	err = s.db.QueryRowContext(ctx, `SELECT left FROM stock`).Scan(&left)
	return outcome{lost: sold - (stock - left)}, err
}

// fill makes the table as it was.
func (s *shop) fill(ctx context.Context) error {
	_, err := s.db.ExecContext(ctx, `
		CREATE TABLE IF NOT EXISTS stock (left INTEGER NOT NULL, version INTEGER NOT NULL, fence INTEGER NOT NULL);
		DELETE FROM stock;
		INSERT INTO stock VALUES (?, 0, 0)`, stock)
	return err
}

// open has transactions that lock when they begin, and wait for each other.
func open(path string) (*sql.DB, error) {
	return sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(30000)&_pragma=journal_mode(WAL)")
}

// result is one way in both runs.
type result struct {
	way            string
	healthy, stops outcome
}

func measure(ctx context.Context) (all []result, err error) {
	addrs := strings.Split(os.Getenv("REDLOCK_ADDRS"), ",")
	if addrs[0] == "" {
		cluster, err := redlocktest.Start(5)
		if err != nil {
			return nil, err
		}
		defer cluster.Close()
		addrs = cluster.Addrs()
	}
	dir, err := os.MkdirTemp("", "choosing-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	db, err := open(filepath.Join(dir, "shop.db"))
	if err != nil {
		return nil, err
	}
	defer db.Close()
	for _, w := range ways {
		r := result{way: w.name}
		// With a long lease where nobody is to be late, and a short one where somebody is.
		for _, run := range []struct {
			ttl   time.Duration
			sales func(context.Context, *shop, way) (outcome, error)
			to    *outcome
		}{{30 * lease, together, &r.healthy}, {lease, oneStops, &r.stops}} {
			if *run.to, err = try(ctx, db, addrs, run.ttl, w, run.sales); err != nil {
				return nil, fmt.Errorf("%s: %w", w.name, err)
			}
		}
		all = append(all, r)
	}
	return all, nil
}

func try(ctx context.Context, db *sql.DB, addrs []string, ttl time.Duration, w way,
	sales func(context.Context, *shop, way) (outcome, error),
) (outcome, error) {
	locks, err := redlock.Open(ctx, addrs, &redlock.Options{TTL: ttl})
	if err != nil {
		return outcome{}, err
	}
	defer locks.Close()
	s := &shop{db, locks}
	if err := s.fill(ctx); err != nil {
		return outcome{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return sales(ctx, s, w)
}

func show(ctx context.Context, out io.Writer) error {
	all, err := measure(ctx)
	if err != nil {
		return err
	}
	return report(out, all)
}

// report prints the table. It returns an error if a way that is safe has lost sales.
func report(out io.Writer, all []result) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "guarded by\tlost of 20 sales\tlost of %d while one stops\tthe others waited\n", salesMeanwhile+1)
	for _, r := range all {
		fmt.Fprintf(t, "%s\t%d\t%d\t%.1f s\n", r.way, r.healthy.lost, r.stops.lost, r.stops.waited.Seconds())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, r := range all {
		if safe := r.way != "nothing" && r.way != "a lock"; safe && (r.healthy.lost != 0 || r.stops.lost != 0) {
			return fmt.Errorf("%s lost sales", r.way)
		}
	}
	return nil
}
