// Command deploy hands a running job over to the next version of a service. The old version
// stops in the middle, writes down how far it came and the token of its lock, and ends. The
// new version goes on from there with the same lock. Somebody else waits for the lock all
// the while, and must not get it before the job is done.
//
//	go run -C examples ./deploy
//	go run -C examples ./deploy -addrs host1:6379,host2:6379,host3:6379
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/examples/internal/nodes"
)

const (
	items = 60
	work  = 5 * time.Millisecond // per item

	// restart is how long the next version may take to start. If it does not come in time, the
	// lease ends, and somebody else starts the job from the beginning. The lock's TTL is as long,
	// since no lease may be longer than that.
	restart = 30 * time.Second
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

// note is what the old version leaves to the new one. Whoever can read it can take the lock
// over, so the file is for this user only.
type note struct {
	Done  int
	Token string
}

func leaveNote(file string, n note) error {
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

func findNote(file string) (n note, found bool, err error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return n, false, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &n)
	}
	return n, err == nil, err
}

// version is one version of the service.
type version struct {
	name string
	rl   *redlock.Redlock
	key  string
	file string
	did  func(item int)
	say  func(format string, args ...any)
}

// start takes the lock: that of the version before, if it left one, or a new one.
func (v *version) start(ctx context.Context) (lock *redlock.Lock, from int, err error) {
	// Both versions fence: what the old one still sends can be refused by its smaller number.
	m := v.rl.Mutex(v.key, redlock.WithTTL(restart), redlock.WithRenewal(), redlock.WithFencing())
	left, found, err := findNote(v.file)
	if err != nil {
		return nil, 0, err
	}
	if !found {
		lock, err = m.Acquire(ctx)
		return lock, 0, err
	}
	// The note is good for one start. Without it a version that crashes here begins anew.
	if err := os.Remove(v.file); err != nil {
		return nil, 0, err
	}
	lock, err = m.Adopt(ctx, left.Token)
	if errors.Is(err, redlock.ErrNotHeld) {
		// Too late: the lease has ended, and somebody else may have changed what we left.
		lock, err = m.Acquire(ctx)
		return lock, 0, err
	}
	return lock, left.Done, err
}

// serve does the job until it is done, or until stop asks it to make room.
func (v *version) serve(ctx context.Context, stop <-chan struct{}) error {
	lock, done, err := v.start(ctx)
	if err != nil {
		return err
	}
	v.say("%s begins with item %d", v.name, done)
	held := lock.Context()
	for ; done < items; done++ {
		select {
		case <-stop:
			// After this the handle is over: it is not renewed, and a deferred Release would do
			// nothing. No other client gets the lock before the lease ends, so that is made as long as we need.
			if err := lock.Extend(ctx, restart); err != nil {
				return errors.Join(err, lock.Release(ctx))
			}
			v.say("%s makes room after %d items", v.name, done)
			return leaveNote(v.file, note{Done: done, Token: lock.Detach()})
		case <-held.Done():
			return context.Cause(held)
		case <-time.After(work):
			v.did(done)
		}
	}
	v.say("%s is done", v.name)
	return lock.Release(ctx)
}

func run(ctx context.Context, out io.Writer, n *nodes.Nodes) error {
	dir, err := os.MkdirTemp("", "example-deploy-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	key := "example-job-" + rand.Text()[:8] // runs of this program do not meet
	var did []int
	say := func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }
	deploy := func(name string, stop <-chan struct{}, progress func(item int)) error {
		rl, err := redlock.Open(ctx, n.Addrs, nil) // a process of its own has its own
		if err != nil {
			return err
		}
		defer rl.Close()
		v := version{name: name, rl: rl, key: key, file: filepath.Join(dir, "note.json"), say: say,
			did: func(item int) { did = append(did, item); progress(item) }}
		return v.serve(ctx, stop)
	}

	// The old version runs, and somebody else waits behind it.
	begun, stop, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- deploy("version 1", stop, func(item int) {
			switch item {
			case 0:
				close(begun)
			case items / 2:
				close(stop)
			}
		})
	}()
	select {
	case <-begun:
	case err := <-ended: // it did not even begin
		return err
	}
	other, err := redlock.Open(ctx, n.Addrs, nil)
	if err != nil {
		return err
	}
	defer other.Close()
	var waiter errgroup.Group
	seen := 0
	waiter.Go(func() error {
		return other.Mutex(key, redlock.WithTTL(restart), redlock.WithFencing()).Do(ctx, func(context.Context, *redlock.Lock) error {
			seen = len(did) // under the lock, so nobody writes
			return nil
		})
	})
	if err := <-ended; err != nil {
		return err
	}
	if err := deploy("version 2", nil, func(int) {}); err != nil {
		return err
	}
	if err := waiter.Wait(); err != nil {
		return err
	}
	for i, item := range did {
		if item != i {
			return fmt.Errorf("item %d was done in place of item %d", item, i)
		}
	}
	if len(did) != items || seen != items {
		return fmt.Errorf("%d of %d items are done, and the next in line saw %d", len(did), items, seen)
	}
	say("%d items, each done once, and nobody got the lock in between", items)
	return nil
}
