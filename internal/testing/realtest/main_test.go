package realtest_test

import (
	"flag"
	"fmt"
	"runtime"
	"testing"

	"github.com/redis/go-redis/v9/logging"

	"github.com/quorumlock/redlock/internal/testing/leaktest"
)

// TestMain fails the run if tests leave goroutines behind, and keeps go-redis from
// reporting every failed dial. Tests here wait most of the time, so more of them run at once
// than there are processors.
func TestMain(m *testing.M) {
	logging.Disable()
	_ = flag.Set("test.parallel", fmt.Sprint(3*runtime.GOMAXPROCS(0)))
	leaktest.Main(m)
}
