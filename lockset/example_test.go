package lockset_test

import (
	"context"
	"fmt"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/lockset"
	"github.com/quorumlock/redlock/redlocktest"
)

// The order of the keys does not matter: two transfers between the same accounts do not wait for each
// other for ever.
func Example() {
	cluster, err := redlocktest.Start(3)
	if err != nil {
		panic(err)
	}
	defer cluster.Close()
	rl, err := redlock.Open(context.Background(), cluster.Addrs(), nil)
	if err != nil {
		panic(err)
	}
	defer rl.Close()

	transfer := func(from, to string) error {
		accounts := lockset.New(rl.Mutex("account:"+from), rl.Mutex("account:"+to))
		return accounts.Do(context.Background(), func(ctx context.Context, locks lockset.Locks) error {
			fmt.Println(from, "to", to, "with", len(locks), "locks")
			return ctx.Err()
		})
	}
	fmt.Println(transfer("7", "8"), transfer("8", "7"))
	// Output:
	// 7 to 8 with 2 locks
	// 8 to 7 with 2 locks
	// <nil> <nil>
}
