package main

import (
	"context"
	"os"
	"sync"
	"testing"

	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(execute(os.Args[1:])) // started by the program under test
	}
	logging.Disable()
	code := m.Run()
	closeServers(common.servers)
	os.Exit(code)
}

// common are the servers of all benchmarks.
var common struct {
	sync.Once
	servers []*realredis.Server
	err     error
}

func commonServers(tb testing.TB) []*realredis.Server {
	tb.Helper()
	realredis.Need(tb)
	common.Do(func() { common.servers, common.err = realredis.LaunchN(context.Background(), nodeCount) })
	require.NoError(tb, common.err)
	return common.servers
}
