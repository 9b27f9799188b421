package realtest_test

import (
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Row 91, E7: a user may do all that a fenced acquire needs but write the counter. The
// script fails after it has set the lock, and scripts are not rolled back: the lock must be
// taken back all the same.
func TestFencedAcquireThatFailsHalfwayLeavesNothing(t *testing.T) {
	t.Parallel()
	if realredis.Major(t) < 7 {
		t.Skip("no user can have such rights before Redis 7")
	}
	f := convStart(t, 3, realredis.User("halfway", "secret", "+@all", "&*", "~warm-up", "~"+convKey, "(~* +eval +evalsha +get)"))
	rl := f.direct().users(t, redlock.Options{TTL: time.Minute, NoRestartGuard: true}, func(o *redis.Options) {
		o.Username, o.Password = "halfway", "secret"
	})
	convWarm(t, f, rl)
	_, err := rl.Mutex(convKey, redlock.WithFencing()).TryAcquire(t.Context())
	require.Error(t, err)
	t.Log(err)
	require.Eventually(t, func() bool { return f.gone(convKey) }, 3*time.Second, 5*time.Millisecond, "the lock is left: %v", f.held(convKey))
}
