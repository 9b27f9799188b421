package main

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/quorumlock/redlock/bench/results"
)

// latencies collects durations of many goroutines. It is small, for a large live heap
// would make every candidate look better by making collections rare.
type latencies struct {
	shards [4]struct {
		mu sync.Mutex
		h  *hdrhistogram.Histogram
		_  [64]byte
	}
}

const longestLatency = 10 * time.Minute

// newHistogram holds durations from 100 ns on, to two digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(100, int64(longestLatency), 2)
}

func newLatencies() *latencies {
	l := &latencies{}
	for i := range l.shards {
		l.shards[i].h = newHistogram()
	}
	return l
}

// record adds a duration measured by goroutine number i.
func (l *latencies) record(i int, d time.Duration) {
	s := &l.shards[i%len(l.shards)]
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.h.RecordValue(int64(min(max(d, 100), longestLatency)))
}

func (l *latencies) merged() *hdrhistogram.Histogram {
	h := newHistogram()
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		h.Merge(s.h)
		s.mu.Unlock()
	}
	return h
}

func spreadOf(h *hdrhistogram.Histogram) results.Spread {
	return results.Spread{
		P50: time.Duration(h.ValueAtQuantile(50)), P99: time.Duration(h.ValueAtQuantile(99)),
		Max: time.Duration(h.Max()), Count: h.TotalCount(),
	}
}
