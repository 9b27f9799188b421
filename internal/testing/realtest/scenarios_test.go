package realtest_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/bubble"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/quorumlock/redlock/redlocktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Scenario 39: servers that evict keys take locks away. Check says so beforehand, and the
// holder learns of it when it extends.
func TestEvictedLockIsLearntAtTheNextExtend(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3, realredis.Args("maxmemory", "3mb", "maxmemory-policy", "allkeys-random"))
	rl := f.direct(t, patient)
	report := check(t, rl)
	for i := range f.servers {
		require.Contains(t, codes(report, i), "critical eviction")
	}
	lock := requireLock(t, rl)
	waitForVotes(t, lock)
	filler := strings.Repeat("x", 1024)
	for _, admin := range f.admins[:2] {
		for i := 0; admin.Exists(t.Context(), resource).Val() > 0; i++ {
			require.Less(t, i, 1000, "the key outlives a million others")
			p := admin.Pipeline()
			for j := range 1000 {
				p.Set(t.Context(), fmt.Sprint("filler-", i, "-", j), filler, 0)
			}
			_, err := p.Exec(t.Context())
			require.NoError(t, err)
		}
	}
	require.Positive(t, lock.Validity(), "nothing has told it")
	err := lock.Extend(t.Context(), time.Minute)
	require.ErrorIs(t, err, redlock.ErrLost)
	require.ErrorIs(t, err, redlock.ErrNotHeld)
}

// Scenario 62, without a line that would put them in order: contenders that ask different
// nodes first split the votes, give back what they have, and come again at different
// times. All are served, after a bounded number of attempts.
func TestSplitVotesAreSettled(t *testing.T) {
	for _, contenders := range []int{5, 20, 50} {
		t.Run(fmt.Sprint(contenders), func(t *testing.T) {
			bubble.Run(t, 5, func(t *testing.T, c *redlocktest.Cluster) {
				var clients []*redlock.Redlock
				for i := range contenders {
					rl, network := separable(t, c, redlock.Options{})
					warm(t, rl, time.Minute)
					for j, p := range network {
						p.Delay(time.Duration((i+j)%5)*time.Millisecond, 0)
					}
					clients = append(clients, rl)
				}
				synctest.Wait()
				c.ResetCommands()
				const hold = 10 * time.Millisecond
				var all sync.WaitGroup
				inside := make(chan struct{}, 1)
				start := time.Now()
				for _, rl := range clients {
					all.Go(func() {
						lock, err := rl.Mutex(unlined).Acquire(t.Context())
						if !assert.NoError(t, err) {
							return
						}
						select {
						case inside <- struct{}{}:
						default:
							t.Error("two holders at once")
						}
						time.Sleep(hold)
						<-inside
						assert.NoError(t, lock.Release(t.Context()))
					})
				}
				all.Wait()
				attempts := float64(c.Commands("SET")) / 5 / float64(contenders)
				t.Logf("%v, %.1f attempts for each grant", time.Since(start), attempts)
				assert.Less(t, time.Since(start), time.Duration(contenders)*10*hold+10*time.Second)
				assert.Less(t, attempts, 30.)
			})
		})
	}
}
