package redlock

import (
	"context"
	"testing"
	"time"

	"github.com/quorumlock/redlock/internal/realredis"
	"github.com/stretchr/testify/require"
)

func addrs(s []*realredis.Server) (a []string) {
	for _, x := range s {
		a = append(a, x.Addr())
	}
	return
}

func TestSmoke(t *testing.T) {
	s := realredis.StartN(t, 5)
	rl, err := Open(t.Context(), addrs(s), nil)
	require.NoError(t, err)
	defer rl.Close()
	m := rl.Mutex("k")
	l, err := m.TryAcquire(t.Context())
	require.NoError(t, err)
	t.Log(l.Outcomes(), l.Validity(), l.Token())
	_, err = m.TryAcquire(t.Context())
	require.ErrorIs(t, err, ErrHeld)
	t.Log(err)
	ctx, c := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer c()
	_, err = m.Acquire(ctx)
	t.Log(err)
	st, err := m.Inspect(t.Context())
	t.Logf("%+v %v", st, err)
	require.NoError(t, l.Extend(t.Context(), 20*time.Second))
	t.Log(l.Validity())
	require.NoError(t, l.Release(t.Context()))
	s[0].Pause()
	s[1].Kill()
	t0 := time.Now()
	for range 3 {
		l, err = m.TryAcquire(t.Context())
		t.Log(time.Since(t0), err)
		require.NoError(t, l.Release(t.Context()))
		t.Log(time.Since(t0))
		t.Log(l.Outcomes())
	}
	s[2].Kill()
	_, err = m.TryAcquire(t.Context())
	t.Log(err)
}

func BenchmarkCycle(b *testing.B) {
	s, err := realredis.LaunchN(context.Background(), 5)
	require.NoError(b, err)
	defer func() {
		for _, x := range s {
			x.Close()
		}
	}()
	rl, err := Open(b.Context(), addrs(s), nil)
	require.NoError(b, err)
	defer rl.Close()
	b.SetParallelism(64)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		m := rl.Mutex(rand16())
		for pb.Next() {
			l, err := m.TryAcquire(b.Context())
			if err != nil {
				b.Error(err)
				return
			}
			l.Release(b.Context())
		}
	})
}

func rand16() string { return time.Now().String() }
