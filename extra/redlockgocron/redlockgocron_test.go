package redlockgocron_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/extra/redlockgocron"
	"github.com/quorumlock/redlock/redlocktest"
)

var (
	_ gocron.Locker  = (*redlockgocron.Locker)(nil)
	_ gocron.Elector = (*redlockgocron.Elector)(nil)
)

func open(t *testing.T, cluster *redlocktest.Cluster) *redlock.Redlock {
	rl, err := redlock.New(cluster.Clients(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = rl.Close() })
	return rl
}

// Many schedulers start the same job, the last one when the first has finished it long ago. It runs once.
func TestAJobRunsOnceAmongManySchedulers(t *testing.T) {
	cluster := redlocktest.NewCluster(t, 3)
	cluster.Node(2).Hang()
	var ran, refused atomic.Int64
	for range 5 {
		s, err := gocron.NewScheduler(gocron.WithDistributedLocker(redlockgocron.NewLocker(open(t, cluster), time.Minute)))
		require.NoError(t, err)
		over := make(chan error, 1)
		_, err = s.NewJob(
			gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()),
			gocron.NewTask(func() { ran.Add(1) }),
			gocron.WithName("report"),
			gocron.WithEventListeners(
				gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) { refused.Add(1); over <- err }),
				gocron.AfterJobRuns(func(uuid.UUID, string) { over <- nil }),
			),
		)
		require.NoError(t, err)
		s.Start()
		select {
		case err = <-over:
		case <-time.After(time.Minute):
			t.Fatal("neither run nor refused")
		}
		require.NoError(t, s.Shutdown())
		if err != nil {
			assert.ErrorIs(t, err, redlock.ErrHeld)
		}
	}
	assert.EqualValues(t, 1, ran.Load())
	assert.EqualValues(t, 4, refused.Load())
}

// The next run is another's chance: the lock is free again after minHold.
func TestALockIsFreeAfterItsMinHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Hour) }) // go-redis' last retries
		cluster := redlocktest.NewCluster(t, 3)
		a, b := redlockgocron.NewLocker(open(t, cluster), time.Minute), redlockgocron.NewLocker(open(t, cluster), time.Minute)
		lock, err := a.Lock(t.Context(), "report")
		require.NoError(t, err)
		require.NoError(t, lock.Unlock(t.Context()))
		_, err = b.Lock(t.Context(), "report")
		require.ErrorIs(t, err, redlock.ErrHeld)
		time.Sleep(time.Minute + time.Second)
		lock, err = b.Lock(t.Context(), "report")
		require.NoError(t, err)
		require.NoError(t, lock.Unlock(t.Context()))

		_, err = redlockgocron.NewLocker(open(t, cluster), 0).Lock(t.Context(), "x")
		require.ErrorIs(t, err, redlock.ErrInvalid)
	})
}

func TestZeroElectorNeverLeads(t *testing.T) {
	var e redlockgocron.Elector
	require.ErrorIs(t, e.IsLeader(t.Context()), redlockgocron.ErrNotLeader)
	require.NoError(t, e.Close())
}

// One of several is the leader; after its end, or an outage, there is one again.
func TestOneElectorLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Hour) }) // go-redis' last retries
		cluster := redlocktest.NewCluster(t, 3)
		var all []*redlockgocron.Elector
		for range 3 {
			all = append(all, redlockgocron.NewElector(open(t, cluster).Mutex("leader")))
		}
		leader := func() (at int) {
			t.Helper()
			at = -1
			for i, e := range all {
				switch err := e.IsLeader(t.Context()); {
				case err == nil && at >= 0:
					t.Fatal("two leaders")
				case err == nil:
					at = i
				default:
					require.ErrorIs(t, err, redlockgocron.ErrNotLeader)
				}
			}
			return at
		}
		time.Sleep(time.Second)
		first := leader()
		require.NotEqual(t, -1, first)
		require.NoError(t, all[first].Close())
		require.NoError(t, all[first].Close(), "a second time")
		time.Sleep(time.Second)
		second := leader()
		require.NotContains(t, []int{-1, first}, second)

		cluster.Node(0).Stop()
		cluster.Node(1).Stop()
		time.Sleep(time.Minute)
		require.Equal(t, -1, leader(), "nobody leads without a majority")
		cluster.Node(0).Restart(redlocktest.KeepKeys)
		cluster.Node(1).Restart(redlocktest.KeepKeys)
		time.Sleep(time.Minute)
		require.NotEqual(t, -1, leader())
		for _, e := range all {
			require.NoError(t, e.Close())
		}
	})
}

func TestElectionThatCannotBegin(t *testing.T) {
	cluster := redlocktest.NewCluster(t, 1)
	e := redlockgocron.NewElector(open(t, cluster).Mutex("")) // no key
	err := e.Close()
	require.ErrorIs(t, err, redlock.ErrInvalid)
	err = e.IsLeader(t.Context())
	require.True(t, errors.Is(err, redlockgocron.ErrNotLeader) && errors.Is(err, redlock.ErrInvalid), fmt.Sprint(err))
}
