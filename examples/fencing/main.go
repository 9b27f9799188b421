// Command fencing shows what a fencing token is for. A worker is paused past the end of
// its lease, as by a long garbage collection, a suspended machine or a debugger. It wakes
// in the middle of its work, and believes that it has the lock. Another worker has taken
// over meanwhile. The table remembers the greatest token of its writes, so the first
// worker's write is refused.
//
//	go run -C examples ./fencing
//
// The nodes run inside this program; with REDLOCK_ADDRS=host1:6379,host2:6379,... it uses
// yours. The table is in SQLite, in a temporary file. Any database with UPDATE ... WHERE
// will do.
package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	_ "modernc.org/sqlite"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
)

// lease is short, so that there is not long to wait.
const lease = time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := error(nil)
	if name := os.Getenv("FENCING_WORKER"); name != "" {
		err = work(ctx, name, os.Getenv("FENCING_DB"), os.Stdin, os.Stdout)
	} else {
		err = show(ctx, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// errStale: the table has seen a greater token.
var errStale = errors.New("refused: a later holder has written already")

// deposit writes under a token. The check and the write are one statement.
func deposit(ctx context.Context, db *sql.DB, by string, fence uint64) error {
	r, err := db.ExecContext(ctx,
		`UPDATE account SET balance = balance + 1, last = ?, fence = ? WHERE id = 1 AND fence <= ?`, by, fence, fence)
	if err != nil {
		return err
	}
	if n, err := r.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, errStale)
	}
	return nil
}

// work is one worker. It takes the lock, says so, waits for a word, and writes without
// checking the lock again. A careful worker would check, but no check helps against a pause
// between the check and the write.
func work(ctx context.Context, name, path string, in io.Reader, out io.Writer) error {
	rl, err := redlock.Open(ctx, strings.Split(os.Getenv("REDLOCK_ADDRS"), ","), &redlock.Options{TTL: lease, Owner: name})
	if err != nil {
		return err
	}
	defer rl.Close()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		return err
	}
	defer db.Close()
	lock, err := rl.Mutex("example-account:1", redlock.WithFencing()).Acquire(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "has the lock, token %d\n", lock.Fence())
	if _, err := bufio.NewReader(in).ReadString('\n'); err != nil {
		return err
	}
	switch err := deposit(ctx, db, name, lock.Fence()); {
	case errors.Is(err, errStale):
		fmt.Fprintln(out, "write", err)
	case err != nil:
		return err
	default:
		fmt.Fprintln(out, "has written")
	}
	_ = lock.Release(ctx) // not ours any more, perhaps
	return nil
}

// worker is a worker in a process of its own.
type worker struct {
	*exec.Cmd
	name string
	in   io.Writer
	out  *bufio.Reader
	log  io.Writer
}

func start(ctx context.Context, name, addrs, path string, log io.Writer) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &worker{Cmd: exec.CommandContext(ctx, self), name: name, log: log}
	w.Env = append(os.Environ(), "FENCING_WORKER="+name, "FENCING_DB="+path, "REDLOCK_ADDRS="+addrs)
	w.Stderr = os.Stderr
	if w.in, err = w.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.out = bufio.NewReader(out)
	return w, w.Start()
}

// says waits for the worker's next line.
func (w *worker) says() error {
	line, err := w.out.ReadString('\n')
	fmt.Fprintf(w.log, "%s %s\n", w.name, strings.TrimSpace(line))
	return err
}

func (w *worker) goOn() error {
	_, err := io.WriteString(w.in, "go on\n")
	return err
}

func show(ctx context.Context, out io.Writer) error {
	addrs := os.Getenv("REDLOCK_ADDRS")
	if addrs == "" {
		cluster, err := redlocktest.Start(5)
		if err != nil {
			return err
		}
		defer cluster.Close()
		addrs = strings.Join(cluster.Addrs(), ",")
	}
	dir, err := os.MkdirTemp("", "fencing-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "bank.db")
	db, err := sql.Open("sqlite", path)
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, `
		CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER, last TEXT, fence INTEGER);
		INSERT INTO account VALUES (1, 0, '', 0)`); err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	first, err := start(ctx, "first", addrs, path, out)
	if err != nil {
		return err
	}
	if err := first.says(); err != nil {
		return err
	}
	fmt.Fprintln(out, "first is paused (SIGSTOP), past the end of its lease")
	if err := first.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	second, err := start(ctx, "second", addrs, path, out)
	if err != nil {
		return err
	}
	// It waits until the first one's lease is over.
	if err := errors.Join(second.says(), second.goOn(), second.says(), second.Wait()); err != nil {
		return err
	}
	fmt.Fprintln(out, "first wakes up (SIGCONT)")
	if err := errors.Join(first.Process.Signal(syscall.SIGCONT), first.goOn(), first.says(), first.Wait()); err != nil {
		return err
	}
	var balance int
	var last string
	if err := db.QueryRowContext(ctx, `SELECT balance, last FROM account`).Scan(&balance, &last); err != nil {
		return err
	}
	fmt.Fprintf(out, "balance %d, last written by %s\n", balance, last)
	if balance != 1 || last != "second" {
		return errors.New("the stale write was not refused")
	}
	return nil
}
