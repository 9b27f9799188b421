package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
)

// Five nodes inside this program take the place of five servers.
func startExample() (*redlocktest.Cluster, *redlock.Redlock) {
	cluster, err := redlocktest.Start(5)
	if err != nil {
		panic(err)
	}
	rl, err := redlock.New(cluster.Clients(), nil)
	if err != nil {
		panic(err)
	}
	return cluster, rl
}

// traced is a client whose hooks see lock commands, since New does not look into it. Wrapped like
// this, a *redis.Client lacks the restart guard.
type traced struct{ redis.UniversalClient }

// commandNames is a hook that notes the names of commands.
type commandNames struct{ seen chan string }

func (commandNames) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (commandNames) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h commandNames) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, c := range cmds {
			select {
			case h.seen <- c.Name():
			default:
			}
		}
		return next(ctx, cmds)
	}
}

// For a *redis.Client, New opens connections of its own, and the client's hooks see none of its
// commands. A type with the client in it gets the commands itself.
func ExampleNew_hooks() {
	cluster, err := redlocktest.Start(1)
	if err != nil {
		panic(err)
	}
	defer cluster.Close()
	client := cluster.Client(0, nil)
	hook := commandNames{make(chan string, 1)}
	client.AddHook(hook)

	rl, err := redlock.New([]redis.UniversalClient{traced{client}}, &redlock.Options{Names: []string{"a"}})
	if err != nil {
		panic(err)
	}
	defer rl.Close()
	_, err = rl.Mutex("orders:42").TryAcquire(context.Background())
	fmt.Println(<-hook.seen, err)
	// Output: set <nil>
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
