package redsync_test

import (
	"testing"

	"github.com/redis/go-redis/v9/logging"

	"github.com/quorumlock/redlock/internal/testing/leaktest"
)

// TestMain fails the run if tests leave goroutines behind, and keeps go-redis from reporting every
// failed dial.
func TestMain(m *testing.M) {
	logging.Disable()
	leaktest.Main(m)
}
