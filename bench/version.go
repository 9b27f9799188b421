package main

import (
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
)

// atLeast compares a version "7.0.15" with a least one.
func atLeast(version string, least ...int) bool {
	var have []int
	for part := range strings.SplitSeq(version, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			break
		}
		have = append(have, n)
	}
	return slices.Compare(have, least) >= 0
}

// moduleVersions tells what was compared.
func moduleVersions() map[string]string {
	versions := make(map[string]string)
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return versions
	}
	for _, path := range []string{
		"github.com/go-redsync/redsync/v4", "github.com/redis/rueidis", "github.com/redis/rueidis/rueidislock",
		"github.com/bsm/redislock", "github.com/redis/go-redis/v9",
		"github.com/jackc/pgx/v5", "go.etcd.io/etcd/client/v3", "github.com/go-zookeeper/zk", "modernc.org/sqlite",
	} {
		for _, m := range info.Deps {
			if m.Path == path {
				versions[path] = m.Version
			}
		}
	}
	return versions
}
