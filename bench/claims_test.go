package main

import (
	"reflect"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// peers are the libraries that docs/choosing.md compares, each with servers of its own.
type peers struct {
	servers map[string][]*redis.Client
	redsync *redsync.Redsync
	bsm     *redislock.Client
	rueidis func(validity time.Duration) rueidislock.Locker
}

const claimed = 300 * time.Millisecond // for how long keys are set here

func newPeers(t *testing.T) *peers {
	t.Helper()
	p := &peers{servers: make(map[string][]*redis.Client)}
	start := func(of string, n int) (addrs []string) {
		for _, s := range realredis.StartN(t, n) {
			p.servers[of] = append(p.servers[of], s.Client(t))
			addrs = append(addrs, s.Addr())
		}
		return addrs
	}
	start("redsync", 3)
	var pools []redsyncredis.Pool
	for _, c := range p.servers["redsync"] {
		pools = append(pools, goredis.NewPool(c))
	}
	p.redsync = redsync.New(pools...)
	start("bsm", 1)
	p.bsm = redislock.New(p.servers["bsm"][0])
	addrs := start("rueidis", 1)
	p.rueidis = func(validity time.Duration) rueidislock.Locker {
		l, err := rueidislock.NewLocker(rueidislock.LockerOption{ClientOption: rueidis.ClientOption{InitAddress: addrs}, KeyValidity: validity})
		require.NoError(t, err)
		t.Cleanup(l.Close)
		return l
	}
	return p
}

func (p *peers) flush(t *testing.T, of string) {
	t.Helper()
	for _, c := range p.servers[of] {
		require.NoError(t, c.FlushAll(t.Context()).Err())
	}
}

// Each cell of the table of libraries in docs/choosing.md that says what a peer does: a test of the
// same name, with the pinned versions.
func TestClaimsAboutPeers(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	const soon, often = 20 * time.Second, 2 * time.Millisecond
	p := newPeers(t)

	t.Run("servers", func(t *testing.T) {
		require.NoError(t, p.redsync.NewMutex("k").Lock())
		for _, c := range p.servers["redsync"] {
			assert.Equal(t, []string{"k"}, c.Keys(t.Context(), "*").Val())
		}
		_, err := p.bsm.Obtain(t.Context(), "k", time.Minute, nil)
		require.NoError(t, err)
		assert.Equal(t, []string{"k"}, p.servers["bsm"][0].Keys(t.Context(), "*").Val())
		_, cancel, err := p.rueidis(claimed).TryWithContext(t.Context(), "k")
		require.NoError(t, err)
		defer cancel()
		assert.Greater(t, len(p.servers["rueidis"][0].Keys(t.Context(), "*").Val()), 1, "several keys, one deployment")
	})
	for of := range p.servers {
		p.flush(t, of)
	}

	t.Run("waiting", func(t *testing.T) {
		require.NoError(t, p.redsync.NewMutex("k").Lock())
		pauses := 0
		err := p.redsync.NewMutex("k", redsync.WithRetryDelayFunc(func(int) time.Duration { pauses++; return 0 })).Lock()
		require.Error(t, err)
		assert.Equal(t, 31, pauses, "between 32 tries")

		_, err = p.bsm.Obtain(t.Context(), "k", time.Minute, nil)
		require.NoError(t, err)
		_, err = p.bsm.Obtain(t.Context(), "k", time.Minute, nil)
		require.ErrorIs(t, err, redislock.ErrNotObtained)
		_, err = p.bsm.Obtain(t.Context(), "k", time.Minute, &redislock.Options{RetryStrategy: redislock.LimitRetry(redislock.LinearBackoff(time.Millisecond), 3)})
		require.ErrorIs(t, err, redislock.ErrNotObtained)

		// Of four that wait, all ask again when the lock is released.
		const waiters = 4
		_, release, err := p.rueidis(time.Minute).WithContext(t.Context(), "k")
		require.NoError(t, err)
		got := make(chan func(), waiters)
		for range waiters {
			l := p.rueidis(time.Minute)
			go func() {
				if _, release, err := l.WithContext(t.Context(), "k"); assert.NoError(t, err) {
					got <- func() { release() }
				}
			}()
		}
		server := p.servers["rueidis"][0]
		settled := 0
		require.Eventually(t, func() bool {
			was := settled
			settled = scriptsRun(t, server)
			return was == settled && settled > waiters
		}, soon, claimed, "they wait")
		release()
		// One script for each of three keys to release, three to acquire, and at least one of each waiter that is refused.
		require.Eventually(t, func() bool { return scriptsRun(t, server) >= settled+3+3+waiters-1 }, soon, often)
		for range waiters {
			(<-got)()
		}
	})
	for of := range p.servers {
		p.flush(t, of)
	}

	t.Run("renewal", func(t *testing.T) {
		require.NoError(t, p.redsync.NewMutex("k", redsync.WithExpiry(claimed)).Lock())
		_, err := p.bsm.Obtain(t.Context(), "k", claimed, nil)
		require.NoError(t, err)
		for _, of := range []string{"redsync", "bsm"} {
			require.Eventually(t, func() bool { return p.servers[of][0].Exists(t.Context(), "k").Val() == 0 }, soon, often, "%s renewed it", of)
		}
		_, release, err := p.rueidis(claimed).WithContext(t.Context(), "k")
		require.NoError(t, err)
		defer release()
		last, grew := time.Hour, 0
		require.Eventually(t, func() bool {
			left := p.servers["rueidis"][0].PTTL(t.Context(), "rueidislock:0:k").Val()
			if left > last {
				grew++
			}
			last = left
			return grew > 2
		}, soon, often, "it was not renewed")
	})
	for of := range p.servers {
		p.flush(t, of)
	}

	t.Run("a loss shows in", func(t *testing.T) {
		m := p.redsync.NewMutex("k")
		require.NoError(t, m.Lock())
		//lint:ignore SA1019 what its users call to see a loss
		ok, err := m.Valid()
		require.NoError(t, err)
		assert.True(t, ok)
		lock, err := p.bsm.Obtain(t.Context(), "k", time.Minute, nil)
		require.NoError(t, err)
		ctx, release, err := p.rueidis(claimed).WithContext(t.Context(), "k")
		require.NoError(t, err)
		defer release()
		for of := range p.servers {
			p.flush(t, of)
		}
		//lint:ignore SA1019 as above
		ok, _ = m.Valid()
		assert.False(t, ok)
		left, err := lock.TTL(t.Context())
		require.NoError(t, err)
		assert.Zero(t, left)
		select {
		case <-ctx.Done():
		case <-time.After(soon):
			assert.Fail(t, "its context goes on")
		}
	})

	t.Run("restarted nodes barred", func(t *testing.T) {
		require.NoError(t, p.redsync.NewMutex("k").Lock())
		_, err := p.bsm.Obtain(t.Context(), "k", time.Minute, nil)
		require.NoError(t, err)
		_, release, err := p.rueidis(claimed).WithContext(t.Context(), "k")
		require.NoError(t, err)
		defer release()
		for of := range p.servers {
			p.flush(t, of)
		}
		require.NoError(t, p.redsync.NewMutex("k").TryLock(), "to another at once")
		_, err = p.bsm.Obtain(t.Context(), "k", time.Minute, nil)
		require.NoError(t, err)
		_, again, err := p.rueidis(claimed).WithContext(t.Context(), "k")
		require.NoError(t, err)
		again()
	})

	t.Run("fencing tokens, shared locks, semaphores, sets", func(t *testing.T) {
		named := regexp.MustCompile(`(?i)fenc|shared|rlock|semaphore|permit|multi`)
		for _, of := range []any{p.redsync, &redsync.Mutex{}, p.bsm, &redislock.Lock{}, p.rueidis(claimed)} {
			for i := range reflect.TypeOf(of).NumMethod() {
				assert.NotRegexp(t, named, reflect.TypeOf(of).Method(i).Name)
			}
		}
	})
}

// scriptsRun is how many scripts a server has run.
func scriptsRun(t *testing.T, c *redis.Client) (n int) {
	t.Helper()
	for _, calls := range regexp.MustCompile(`(?m)^cmdstat_eval(?:sha)?:calls=(\d+)`).FindAllStringSubmatch(c.Info(t.Context(), "commandstats").Val(), -1) {
		more, err := strconv.Atoi(calls[1])
		require.NoError(t, err)
		n += more
	}
	return n
}
