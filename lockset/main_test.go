package lockset_test

import (
	"testing"

	"github.com/redis/go-redis/v9/logging"

	"github.com/quorumlock/redlock/internal/testing/leaktest"
)

func TestMain(m *testing.M) {
	logging.Disable()
	leaktest.Main(m)
}
