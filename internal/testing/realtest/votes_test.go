package realtest_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/realredis"
)

// A master that becomes a replica answers, and has no vote: its hook says so.
func TestHooksAreToldOfAReplica(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	servers := realredis.StartN(t, 4)
	told := make(chan redlock.VoteInfo, 10)
	o := guarded(0)
	o.Hooks = &redlock.Hooks{NodeBarred: func(i redlock.VoteInfo) { told <- i }}
	rl := openAt(t, addrsOf(servers[:3]), o)
	use(t, rl)
	require.NoError(t, servers[1].Client(t).ReplicaOf(t.Context(), "127.0.0.1", strings.TrimPrefix(servers[3].Addr(), "127.0.0.1:")).Err())
	var info redlock.VoteInfo
	require.Eventually(t, func() bool {
		if lock, err := rl.Mutex("k").TryAcquire(t.Context()); err == nil {
			_ = lock.Release(t.Context())
		}
		select {
		case info = <-told:
			return true
		default:
			return false
		}
	}, 20*time.Second, 10*time.Millisecond)
	assert.Equal(t, rl.Nodes()[1], info.Node)
	assert.ErrorContains(t, info.Err, "is a replica")
	assert.Zero(t, info.Until)
}
