package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/redlocktest"
)

// Five nodes inside this program take the place of five servers.
func startExample() (*redlocktest.Cluster, *redlock.Redlock) {
	cluster, err := redlocktest.Start(5)
	if err != nil {
		panic(err)
	}
	rl, err := redlock.New(cluster.Clients(), &redlock.Options{NodeTimeout: 2 * time.Second}) // a busy machine is no news here
	if err != nil {
		panic(err)
	}
	return cluster, rl
}

// Do is what most programs need.
func ExampleMutex_Do() {
	cluster, rl := startExample() // in a program: redlock.Open(ctx, addrs, nil)
	defer cluster.Close()
	defer rl.Close()

	cluster.Node(0).Hang() // a minority of the nodes may fail
	cluster.Node(1).Stop()

	balance := 100
	err := rl.Mutex("account:7").Do(context.Background(), func(ctx context.Context, lock *redlock.Lock) error {
		balance -= 30 // ctx ends when the lock is over or lost
		return ctx.Err()
	})
	fmt.Println(balance, err)
	// Output: 70 <nil>
}

// Acquire waits until the lock is free or its context ends.
func ExampleMutex_Acquire() {
	cluster, rl := startExample()
	defer cluster.Close()
	defer rl.Close()
	m := rl.Mutex("report", redlock.WithTTL(30*time.Second))

	lock, err := m.Acquire(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("valid:", lock.Validity() > 29*time.Second)

	// Another client waits for a moment only.
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err = m.Acquire(ctx)
	fmt.Println("too late:", errors.Is(err, context.DeadlineExceeded), errors.Is(err, redlock.ErrHeld))

	fmt.Println("released:", lock.Release(ctx)) // right even though ctx is over
	// Output:
	// valid: true
	// too late: true true
	// released: <nil>
}

// TryAcquire asks once and never waits for a holder.
func ExampleMutex_TryAcquire() {
	cluster, rl := startExample()
	defer cluster.Close()
	defer rl.Close()
	ctx := context.Background()

	lock, err := rl.Mutex("nightly").TryAcquire(ctx)
	fmt.Println(err)
	_, err = rl.Mutex("nightly").TryAcquire(ctx)
	fmt.Println(errors.Is(err, redlock.ErrHeld))
	fmt.Println(lock.Release(ctx))
	// Output:
	// <nil>
	// true
	// <nil>
}

// Extend gives a piece of work more time. WithRenewal and Do make it unnecessary.
func ExampleLock_Extend() {
	cluster, rl := startExample()
	defer cluster.Close()
	defer rl.Close()
	ctx := context.Background()

	lock, err := rl.Mutex("import", redlock.WithTTL(time.Minute)).TryAcquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch := range 3 {
		if err := lock.Extend(ctx, time.Minute); err != nil {
			fmt.Println("stop:", err)
			return
		}
		fmt.Println("batch", batch, lock.Validity() > 50*time.Second)
	}
	fmt.Println(lock.Release(ctx))
	// Output:
	// batch 0 true
	// batch 1 true
	// batch 2 true
	// <nil>
}

// A QuorumError tells what each node said.
func ExampleQuorumError() {
	cluster, rl := startExample()
	defer cluster.Close()
	defer rl.Close()
	for _, node := range cluster.Nodes()[:3] {
		node.SetError("LOADING Redis is loading the dataset in memory")
	}

	_, err := rl.Mutex("orders:42").TryAcquire(context.Background())
	var q *redlock.QuorumError
	if errors.As(err, &q) {
		fmt.Println("no quorum:", errors.Is(err, redlock.ErrNoQuorum))
		fmt.Println("needed:", q.Need, "of", len(q.Outcomes))
		for _, o := range q.Outcomes[:3] {
			fmt.Println(o.Node, o.Vote, o.Err)
		}
	}
	// Output:
	// no quorum: true
	// needed: 3 of 5
	// node0:6379/0 failed LOADING Redis is loading the dataset in memory
	// node1:6379/0 failed LOADING Redis is loading the dataset in memory
	// node2:6379/0 failed LOADING Redis is loading the dataset in memory
}

// Open takes the addresses of the nodes. A minority of them may be down.
func ExampleOpen() {
	cluster, err := redlocktest.Start(3)
	if err != nil {
		panic(err)
	}
	defer cluster.Close()
	addrs := cluster.Addrs() // in a program: "10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.3:6379"

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // how long to wait out an outage
	defer cancel()
	rl, err := redlock.Open(ctx, addrs, &redlock.Options{TTL: 30 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rl.Close()
	fmt.Println(len(rl.Nodes()), "nodes")
	// Output: 3 nodes
}

// New takes clients of your own, which you close after the Redlock.
func ExampleNew() {
	var clients []redis.UniversalClient
	for _, addr := range []string{"10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.3:6379"} {
		c := redis.NewClient(&redis.Options{Addr: addr, Username: "locks", Password: os.Getenv("LOCKS_PASSWORD"), ReadTimeout: time.Second})
		defer c.Close()
		clients = append(clients, c)
	}
	rl, err := redlock.New(clients, nil) // does no I/O
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rl.Close()
	fmt.Println(rl.Nodes()[0])
	// Output: 10.0.0.1:6379/0
}

// Several readers hold a shared lock at once, and a writer excludes them.
func ExampleMutex_Shared() {
	cluster, rl := startExample()
	defer cluster.Close()
	defer rl.Close()
	ctx, m := context.Background(), rl.Mutex("page")

	one, err := m.Shared().Acquire(ctx)
	fmt.Println(err)
	two, err := m.Shared().Acquire(ctx)
	fmt.Println(err)
	_, err = m.TryAcquire(ctx)
	fmt.Println("writer:", errors.Is(err, redlock.ErrHeld))
	fmt.Println(one.Release(ctx), two.Release(ctx))
	// Output:
	// <nil>
	// <nil>
	// writer: true
	// <nil> <nil>
}

// At most two calls at a time, in all processes. Each has a number that no other call has meanwhile.
func ExampleRedlock_Semaphore() {
	cluster, rl := startExample()
	defer cluster.Close()
	defer rl.Close()
	ctx, api := context.Background(), rl.Semaphore("api", 2)

	a, err := api.Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	b, err := api.Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = api.TryAcquire(ctx)
	fmt.Println("third:", errors.Is(err, redlock.ErrHeld), "same number:", a.Permit() == b.Permit())
	fmt.Println(a.Release(ctx), b.Release(ctx))
	// Output:
	// third: true same number: false
	// <nil> <nil>
}

// Lead runs the function while this process is the leader, and again after it lost its term. It
// returns when its context ends, or with the function's own error.
func ExampleMutex_Lead() {
	cluster, rl := startExample()
	defer cluster.Close()
	defer rl.Close()
	ctx, shutdown := context.WithCancel(context.Background())

	err := rl.Mutex("leader").Lead(ctx, func(ctx context.Context, _ *redlock.Lock) error {
		fmt.Println("leading")
		shutdown()
		<-ctx.Done() // work until the term is over
		return ctx.Err()
	})
	fmt.Println(errors.Is(err, context.Canceled))
	// Output:
	// leading
	// true
}

// A late write of a holder that was paused carries a smaller number, and the database refuses it.
func ExampleWithFencing() {
	cluster, rl := startExample()
	defer cluster.Close()
	defer rl.Close()
	ctx, m := context.Background(), rl.Mutex("order:42", redlock.WithFencing())

	// In SQL: UPDATE orders SET status = $1, fence = $2 WHERE id = $3 AND fence <= $2
	latest := uint64(0)
	update := func(status string, fence uint64) {
		if fence < latest {
			fmt.Println(status, "refused: a later holder has written")
			return
		}
		latest = fence
		fmt.Println(status, "written")
	}

	paused, err := m.Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	// Its process is paused past the end of the lease. Here an operator takes the lock away, which is sooner.
	nodes, err := admin.New(cluster.Clients(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := nodes.ForceRelease(ctx, "order:42", admin.HeldBy(paused.Token())); err != nil {
		fmt.Println(err)
		return
	}
	err = m.Do(ctx, func(_ context.Context, lock *redlock.Lock) error {
		update("shipped", lock.Fence())
		return nil
	})
	fmt.Println(err)
	update("cancelled", paused.Fence())
	// Output:
	// shipped written
	// <nil>
	// cancelled refused: a later holder has written
}

// The old version of a service leaves its lock to the new one. No other client gets it in between.
func ExampleLock_Detach() {
	cluster, rl := startExample()
	defer cluster.Close()
	defer rl.Close()
	ctx, m := context.Background(), rl.Mutex("import", redlock.WithTTL(time.Minute))

	old, err := m.Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := old.Extend(ctx, 30*time.Second); err != nil { // time for the new version to start
		fmt.Println(err)
		return
	}
	token := old.Detach()
	fmt.Println("old version holds it:", old.Validity() > 0, errors.Is(context.Cause(old.Context()), redlock.ErrReleased))

	_, err = m.TryAcquire(ctx)
	fmt.Println("others:", errors.Is(err, redlock.ErrHeld))

	next, err := m.Adopt(ctx, token) // in the new version, which was told the token
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("new version:", next.Validity() > 50*time.Second, next.Release(ctx))
	// Output:
	// old version holds it: false true
	// others: true
	// new version: true <nil>
}

// The program that was to adopt a lock begins anew if it comes too late. A token is good for one Adopt.
func ExampleMutex_Adopt() {
	cluster, rl := startExample()
	defer cluster.Close()
	defer rl.Close()
	ctx, m := context.Background(), rl.Mutex("import", redlock.WithTTL(time.Minute), redlock.WithRenewal())

	goOn := func(token string) *redlock.Lock {
		lock, err := m.Adopt(ctx, token)
		switch {
		case err == nil:
			fmt.Println("go on")
		case errors.Is(err, redlock.ErrNotHeld): // others may have had the lock meanwhile
			fmt.Println("begin anew")
			lock, err = m.Acquire(ctx)
		}
		if err != nil {
			fmt.Println(err)
		}
		return lock
	}

	old, err := m.Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	token := old.Detach()
	fmt.Println(goOn(token).Release(ctx))
	fmt.Println(goOn(token).Release(ctx))
	// Output:
	// go on
	// <nil>
	// begin anew
	// <nil>
}

// Held is for a function that must be called under a lock and was not given it.
func ExampleHeld() {
	cluster, rl := startExample()
	defer cluster.Close()
	defer rl.Close()

	save := func(ctx context.Context) error {
		lock, ok := redlock.Held(ctx, "orders")
		if !ok {
			return errors.New("save is called without the lock")
		}
		fmt.Println("under the lock:", lock.Validity() > 0)
		return nil
	}
	fmt.Println(save(context.Background()))
	fmt.Println(rl.Mutex("orders").Do(context.Background(), func(ctx context.Context, _ *redlock.Lock) error {
		return save(ctx)
	}))
	// Output:
	// save is called without the lock
	// under the lock: true
	// <nil>
}

// WithMaxWait bounds the wait and not the work. Test for ErrHeld and ErrNoQuorum first: the error is
// context.DeadlineExceeded, too, although no context of yours has ended.
func ExampleWithMaxWait() {
	cluster, rl := startExample()
	defer cluster.Close()
	defer rl.Close()
	ctx := context.Background()
	lock, err := rl.Mutex("order:42").Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = rl.Mutex("order:42", redlock.WithMaxWait(500*time.Millisecond)).Do(ctx, func(context.Context, *redlock.Lock) error { return nil })
	switch {
	case err == nil:
		fmt.Println("200")
	case errors.Is(err, redlock.ErrHeld):
		fmt.Println("409: another request does it")
	case errors.Is(err, redlock.ErrNoQuorum):
		fmt.Println("503: the nodes are down")
	default:
		fmt.Println("500:", err)
	}
	fmt.Println(lock.Release(ctx))
	// Output:
	// 409: another request does it
	// <nil>
}

// LogHooks logs what is worth a line: outages, nodes that go down and come back, lost locks.
func ExampleLogHooks() {
	plain := slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr { // what differs from run to run
			switch a.Key {
			case slog.LevelKey, slog.MessageKey, "key":
				return a
			}
			return slog.Attr{}
		},
	})
	cluster, err := redlocktest.Start(3)
	if err != nil {
		panic(err)
	}
	defer cluster.Close()
	rl, err := redlock.New(cluster.Clients(), &redlock.Options{
		TTL: time.Minute, NodeTimeout: 5 * time.Second, // a busy machine is no news here
		Hooks: redlock.LogHooks(slog.New(plain)),
	})
	if err != nil {
		panic(err)
	}
	defer rl.Close()
	_ = rl.Mutex("report").Do(context.Background(), func(context.Context, *redlock.Lock) error { return nil })
	// Output:
	// level=DEBUG msg="lock acquired" key=report
	// level=DEBUG msg="lock released" key=report
}

// JoinHooks gives events to several hooks, such as logs and counters of your own.
func ExampleJoinHooks() {
	cluster, err := redlocktest.Start(3)
	if err != nil {
		panic(err)
	}
	defer cluster.Close()
	granted := 0
	hooks := redlock.JoinHooks(redlock.LogHooks(nil), &redlock.Hooks{
		Acquired: func(_ context.Context, i redlock.AcquireInfo) {
			if i.Err == nil {
				granted++
			}
		},
	})
	rl, err := redlock.New(cluster.Clients(), &redlock.Options{Hooks: hooks})
	if err != nil {
		panic(err)
	}
	defer rl.Close()
	for range 3 {
		_ = rl.Mutex("report").Do(context.Background(), func(context.Context, *redlock.Lock) error { return nil })
	}
	fmt.Println(granted)
	// Output: 3
}

// A test of your own code, on nodes that hang. In synctest the lease takes no real time.
func Example_redlocktest() {
	_ = func(t *testing.T) {
		cluster := redlocktest.NewCluster(t, 3)
		rl, err := redlock.New(cluster.Clients(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer rl.Close()
		cluster.Node(0).Hang() // a minority
		err = rl.Mutex("invoice:1").Do(t.Context(), func(ctx context.Context, lock *redlock.Lock) error {
			return nil // the code under test
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
