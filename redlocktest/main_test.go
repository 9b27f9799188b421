package redlocktest_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
)

// TestMain fails the run if tests leave goroutines behind, and keeps go-redis from
// reporting every failed dial.
func TestMain(m *testing.M) {
	logging.Disable()
	code := m.Run()
	leaked := leftovers()
	for deadline := time.Now().Add(5 * time.Second); len(leaked) > 0 && time.Now().Before(deadline); leaked = leftovers() {
		time.Sleep(5 * time.Millisecond)
	}
	if len(leaked) > 0 && code == 0 {
		fmt.Printf("%d goroutines leaked:\n\n%s\n", len(leaked), strings.Join(leaked, "\n\n"))
		code = 1
	}
	os.Exit(code)
}

// leftovers returns the stacks of all goroutines but this one.
func leftovers() []string {
	buf := make([]byte, 4<<20)
	return strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")[1:]
}
