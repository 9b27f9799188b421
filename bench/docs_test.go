package main

import (
	"testing"

	"github.com/quorumlock/redlock/internal/testing/doccheck"
	"github.com/stretchr/testify/require"
)

// The examples of the pages that show other libraries. The root module does not have
// those; it compiles the other examples.
func TestExamplesWithPeersCompile(t *testing.T) {
	c := doccheck.Compiler{
		Dir: ".",
		Imports: []string{
			"context", "errors", "time",
			"github.com/bsm/redislock", "github.com/go-redsync/redsync/v4", "goredis github.com/go-redsync/redsync/v4/redis/goredis/v9",
			"github.com/quorumlock/redlock", "github.com/redis/go-redis/v9", "github.com/redis/rueidis", "github.com/redis/rueidis/rueidislock",
			"clientv3 go.etcd.io/etcd/client/v3", "go.etcd.io/etcd/client/v3/concurrency", "github.com/go-zookeeper/zk",
		},
		Scope:  `func work(context.Context) error { return nil }`,
		Params: "ctx context.Context, client1, client2, client3 *redis.Client, rl *redlock.Redlock, etcd *clientv3.Client, zoo *zk.Conn, err error",
	}
	require.NoError(t, c.CompileAll("../docs/*.md", "go peers"))
}
