// Package leaktest fails a test run that leaves goroutines behind.
package leaktest

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// patience covers a dial of go-redis that nobody waits for any more, which ends after its
// timeout of a second at the latest, and reads that nobody waits for, which take longer.
const patience = 5 * time.Second

// Main runs the tests (m is the *testing.M of TestMain) and exits with their status, or
// with 1 and the stacks on standard output if they passed and goroutines are left after
// five seconds.
func Main(m interface{ Run() int }) {
	os.Exit(run(m.Run, patience, os.Stdout))
}

func run(tests func() int, patience time.Duration, out io.Writer) int {
	code := tests()
	if leaked := Leftovers(patience); len(leaked) > 0 && code == 0 {
		fmt.Fprintf(out, "%d goroutines leaked:\n\n%s\n", len(leaked), strings.Join(leaked, "\n\n"))
		code = 1
	}
	return code
}

// Leftovers returns the stacks of all goroutines but the caller's, after giving them time
// to end.
func Leftovers(patience time.Duration) (stacks []string) {
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for deadline := time.Now().Add(patience); ; <-poll.C {
		buf := make([]byte, 4<<20)
		stacks = strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")[1:]
		// Fuzzing and signal handlers start it, and it never ends.
		stacks = slices.DeleteFunc(stacks, func(s string) bool { return strings.Contains(s, "os/signal.loop") })
		if len(stacks) == 0 || time.Now().After(deadline) {
			return stacks
		}
	}
}
