package redlocktest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
)

// A program that is no test starts and closes its cluster itself.
func Example() {
	cluster, err := redlocktest.Start(3)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cluster.Close()
	ctx := context.Background()

	cluster.Node(2).Stop()
	for i := range cluster.Len() {
		client := cluster.Client(i, func(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 })
		err := client.SetNX(ctx, "orders:42", "alice", time.Minute).Err()
		fmt.Println(cluster.Node(i).Name(), err == nil)
	}
	fmt.Printf("%q\n", cluster.Holders("orders:42"))
	// Output:
	// node0:6379 true
	// node1:6379 true
	// node2:6379 false
	// ["alice" "alice" ""]
}

// A node that restarts without its memory has forgotten that it granted a lock.
func ExampleNode_Restart() {
	cluster, _ := redlocktest.Start(1)
	defer cluster.Close()
	ctx := context.Background()
	client, node := cluster.Client(0, nil), cluster.Node(0)

	fmt.Println(client.SetNX(ctx, "lock", "alice", time.Minute).Val())
	node.Restart(redlocktest.KeepKeys)
	fmt.Println(client.SetNX(ctx, "lock", "bob", time.Minute).Val())
	node.Restart(redlocktest.LoseKeys)
	fmt.Println(client.SetNX(ctx, "lock", "bob", time.Minute).Val())

	text := client.Info(ctx, "server").Val()
	fmt.Println(strings.Contains(text, "run_id:"+node.RunID()))
	// Output:
	// true
	// false
	// true
	// true
}

// A request that was sent to a hung node is executed when the node wakes up, even
// if its sender has given up long ago.
func ExampleNode_Hang() {
	cluster, _ := redlocktest.Start(1)
	defer cluster.Close()
	ctx := context.Background()
	client := cluster.Client(0, func(o *redis.Options) {
		o.ReadTimeout, o.MaxRetries = 50*time.Millisecond, -1
	})
	client.Ping(ctx)

	cluster.Node(0).Hang()
	err := client.SetNX(ctx, "lock", "alice", time.Minute).Err()
	fmt.Printf("%v %q\n", err != nil, cluster.Holders("lock"))

	cluster.Node(0).Resume()
	for cluster.Node(0).Get("lock") == "" {
		time.Sleep(time.Millisecond)
	}
	fmt.Printf("%q\n", cluster.Holders("lock"))
	// Output:
	// true [""]
	// ["alice"]
}

// The command was executed, but its sender cannot know.
func ExampleNode_DropReply() {
	cluster, _ := redlocktest.Start(1)
	defer cluster.Close()
	ctx := context.Background()
	client := cluster.Client(0, func(o *redis.Options) { o.MaxRetries = -1 })

	cluster.Node(0).DropReply("SET", 1)
	fmt.Println(client.SetNX(ctx, "lock", "alice", time.Minute).Err())
	fmt.Println(cluster.Holders("lock"), cluster.Commands("SET"))
	// Output:
	// EOF
	// [alice] 1
}

// An asynchronous replica is promoted which has not heard of the lock.
func ExampleNode_Failover() {
	cluster, _ := redlocktest.Start(1)
	defer cluster.Close()
	ctx := context.Background()
	client, node := cluster.Client(0, nil), cluster.Node(0)

	node.DetachReplica()
	client.SetNX(ctx, "lock", "alice", time.Minute)
	node.Stop()
	node.Failover()
	fmt.Println(errors.Is(client.Get(ctx, "lock").Err(), redis.Nil))
	// Output: true
}

// In a bubble of testing/synctest a minute's work is over in no time, nodes that fail included.
func Example_synctest() {
	test := func(t *testing.T) { // in a real program: func TestJob(t *testing.T)
		synctest.Test(t, func(t *testing.T) {
			cluster := redlocktest.NewCluster(t, 5)
			rl, err := redlock.New(cluster.Clients(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer rl.Close()
			cluster.Node(0).Stop()
			err = rl.Mutex("job").Do(t.Context(), func(ctx context.Context, _ *redlock.Lock) error {
				cluster.Node(1).Hang()
				time.Sleep(time.Minute) // the lease is renewed by the other three
				return ctx.Err()
			})
			t.Log(err) // <nil>
		})
	}
	_ = test
}
