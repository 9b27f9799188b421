package redlock_test

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
)

// leakPatience covers a dial of go-redis that nobody waits for any more, which ends
// after its timeout of a second at the latest.
const leakPatience = 5 * time.Second

// TestMain fails the run if tests leave goroutines behind, and keeps go-redis from
// reporting every failed dial.
func TestMain(m *testing.M) {
	logging.Disable()
	code := m.Run()
	if leaked := leftovers(leakPatience); len(leaked) > 0 && code == 0 {
		fmt.Printf("%d goroutines leaked:\n\n%s\n", len(leaked), strings.Join(leaked, "\n\n"))
		code = 1
	}
	os.Exit(code)
}

// leftovers returns the stacks of all goroutines but its own, after giving them time
// to end.
func leftovers(patience time.Duration) (stacks []string) {
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for deadline := time.Now().Add(patience); ; <-poll.C {
		buf := make([]byte, 4<<20)
		stacks = strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")[1:]
		stacks = slices.DeleteFunc(stacks, func(s string) bool { return strings.Contains(s, "os/signal.loop") }) // fuzzing
		if len(stacks) == 0 || time.Now().After(deadline) {
			return stacks
		}
	}
}
