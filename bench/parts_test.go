package main

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/quorumlock/redlock/bench/results"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBenchmarkRate(t *testing.T) {
	rate, err := benchmarkRate("\"test\",\"rps\"\n\"SET a \"b\", c\",\"49261.09\",\"0.3\"\n")
	require.NoError(t, err)
	assert.Equal(t, 49261.09, rate)
	_, err = benchmarkRate("")
	assert.Error(t, err)
}

func TestTheSoakComesFirst(t *testing.T) {
	assert.Equal(t, []int{7, 1, 3}, inOrder([]int{3, 1, 7, 3}))
	assert.Equal(t, []int{2}, inOrder([]int{2}))
}

func TestFlagsMayHaveOneDash(t *testing.T) {
	assert.Equal(t, []string{"--json", "x", "--quick", "-h", "-", "--", "-x"}, twoDashes([]string{"-json", "x", "--quick", "-h", "-", "--", "-x"}))
}

func TestAtLeast(t *testing.T) {
	assert.True(t, atLeast("7.0.15", 7, 0, 5))
	assert.True(t, atLeast("8.0", 7, 0, 5))
	assert.True(t, atLeast("7.0.5", 7, 0, 5))
	assert.False(t, atLeast("6.2.14", 7, 0, 5))
	assert.False(t, atLeast("", 7))
}

func TestRatioComparesEachRoundWithItself(t *testing.T) {
	assert.Equal(t, results.Ratio{Median: 2, Min: 1, Max: 3}, results.RatioOf([]float64{10, 40, 90}, []float64{10, 20, 30}))
	assert.Equal(t, results.Ratio{Median: 1, Min: 1, Max: 1}, results.RatioOf([]float64{10, 40}, []float64{10, 0}))
	assert.Equal(t, results.Ratio{}, results.RatioOf([]float64{10}, nil))
}

func TestSharedMemoryCatchesBrokenExclusion(t *testing.T) {
	path, s, err := newShared(t.TempDir())
	require.NoError(t, err)
	defer s.close()
	other, err := openShared(path)
	require.NoError(t, err)
	defer other.close()

	s.visit()
	other.visit()
	assert.EqualValues(t, 2, s.count.Load())
	assert.Zero(t, s.violations.Load())

	s.inside.Add(1) // somebody is in there
	other.visit()
	assert.EqualValues(t, 1, s.violations.Load())
}

// A turn ends although calls hang, counts them, and goes on when they are freed.
func TestTurnIsBounded(t *testing.T) {
	var once sync.Once
	c := &stuckCandidate{free: make(chan struct{})}
	got, err := take(t.Context(), c, nil, load{
		goroutines: 3, window: 10 * time.Millisecond, limit: 20 * time.Millisecond,
		heal: func() { once.Do(func() { close(c.free) }) },
	})
	require.NoError(t, err)
	assert.EqualValues(t, 3, got.cut)
	assert.Zero(t, got.cycles)
	assert.Zero(t, got.errors)
}

type stuckCandidate struct{ free chan struct{} }

func (c *stuckCandidate) name() string         { return "stuck" }
func (c *stuckCandidate) close()               {}
func (c *stuckCandidate) worker(string) worker { return c }

func (c *stuckCandidate) acquire(context.Context) error {
	<-c.free
	return errors.New("stuck")
}

func (c *stuckCandidate) release(context.Context) error { return nil }

func TestSpreadIsThatOfTheLeastSteadyCandidate(t *testing.T) {
	of := func(rates ...float64) (s series) {
		for _, r := range rates {
			s.turns = append(s.turns, turn{acquire: newHistogram(), perSecond: r})
		}
		return s
	}
	assert.Equal(t, 1.5, spread([]series{of(10, 11), of(10, 15, 12)}))
	assert.Equal(t, 1.0, spread([]series{of(), of(0, 9), of(7)}))
	stuck := of(10)
	stuck.turns = append(stuck.turns, turn{})
	assert.Equal(t, 1.0, spread([]series{stuck}), "what was not measured does not spread")
}
