package sim_test

import (
	"testing"

	"github.com/redis/go-redis/v9/logging"

	"github.com/quorumlock/redlock/internal/invariants"
	"github.com/quorumlock/redlock/internal/testing/leaktest"
)

// TestMain fails the run if tests leave goroutines behind, keeps go-redis from reporting
// every failed dial, and has a panic of the library's tell the seeds that it may come from.
func TestMain(m *testing.M) {
	invariants.Before = tellUnderWay
	logging.Disable()
	leaktest.Main(m)
}
