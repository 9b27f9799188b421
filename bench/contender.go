package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/spf13/cobra"
)

// contest is the job of a process that contends for the hot key.
type contest struct {
	Candidate  string
	Target     target
	Key        string
	Shared     string // file
	Process    int
	Goroutines int
	Window     time.Duration
	Handover   bool // take turns with the other process instead of as many as possible
}

// outcome is what it achieved.
type outcome struct {
	Error      string  // why it could not even begin
	Served     []int64 // cycles of each goroutine
	Unserved   int64   // goroutines that waited in vain when the time was over
	Errors     int64
	FirstError string
	CPU        time.Duration
	Waits      string // histogram; includes those in vain
}

func contenderCommand() *cobra.Command {
	return &cobra.Command{
		Use: "contender", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return contend(cmd.Context(), newOrders(cmd.InOrStdin(), cmd.OutOrStdout()))
		},
	}
}

// contend is the conversation: job, ready, go, outcome, end of input.
func contend(ctx context.Context, o orders) error {
	var job contest
	if err := o.next(&job); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, job.Window+time.Minute)
	defer cancel()
	c, err := openByName(ctx, job.Candidate, job.Target)
	if err != nil {
		return o.answer(outcome{Error: err.Error()})
	}
	defer c.close()
	mem, err := openShared(job.Shared)
	if err != nil {
		return o.answer(outcome{Error: err.Error()})
	}
	// Connections and scripts, on a key of its own.
	if _, err := take(ctx, c, nil, load{goroutines: job.Goroutines, window: 20 * time.Millisecond}); err != nil {
		return o.answer(outcome{Error: err.Error()})
	}
	if err := o.answer(outcome{}); err != nil {
		return err
	}
	var begin bool
	if err := o.next(&begin); err != nil {
		return err
	}
	before, err := ownCPU()
	if err != nil {
		return err
	}
	out := run(ctx, c, &job, mem)
	after, err := ownCPU()
	if err != nil {
		return err
	}
	out.CPU = after - before
	return o.answer(out)
}

func run(ctx context.Context, c candidate, job *contest, mem *shared) outcome {
	ctx, cancel := context.WithTimeout(ctx, job.Window)
	defer cancel()
	out := outcome{Served: make([]int64, job.Goroutines)}
	waits := newLatencies()
	var mu sync.Mutex
	fail := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if out.Errors++; out.Errors == 1 {
			out.FirstError = err.Error()
		}
	}
	var wg sync.WaitGroup
	for i := range job.Goroutines {
		w := c.worker(job.Key)
		wg.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				if job.Handover {
					mem.waiting[job.Process].Store(1)
				}
				err := w.acquire(ctx)
				granted := time.Now()
				if err != nil && ctx.Err() != nil {
					if !job.Handover {
						waits.record(i, granted.Sub(began))
					}
					mu.Lock()
					out.Unserved++
					mu.Unlock()
					return
				}
				if err != nil {
					waits.record(i, granted.Sub(began))
					fail(err)
					time.Sleep(time.Millisecond)
					continue
				}
				if job.Handover {
					handedOver(ctx, mem, job.Process, granted, func(d time.Duration) { waits.record(i, d) })
				} else {
					waits.record(i, granted.Sub(began))
				}
				if excludes(c) {
					mem.visit()
				} else {
					mem.count.Add(1)
				}
				if job.Handover {
					mem.releasedBy.Store(int64(job.Process) + 1)
					mem.releasedAt.Store(time.Now().UnixNano())
				}
				// The end of the contest must not leave the lock to its TTL.
				if err := w.release(context.WithoutCancel(ctx)); err != nil {
					fail(fmt.Errorf("release: %w", err))
					continue
				}
				out.Served[i]++
				if job.Handover {
					// Let the other have it.
					until(ctx, func() bool {
						return mem.releasedBy.Load() != int64(job.Process)+1 || mem.waiting[1-job.Process].Load() == 0
					})
				}
			}
		})
	}
	wg.Wait()
	if b, err := waits.merged().EncodeV2(); err != nil {
		out.Error = err.Error()
	} else {
		out.Waits = base64.StdEncoding.EncodeToString(b)
	}
	return out
}

// handedOver notes how long it took since the other process began to release, and
// keeps the lock until the other one is sure to wait for it again.
func handedOver(ctx context.Context, mem *shared, process int, granted time.Time, note func(time.Duration)) {
	mem.waiting[process].Store(0)
	if by := mem.releasedBy.Load(); by == int64(1-process)+1 {
		note(time.Duration(granted.UnixNano() - mem.releasedAt.Load()))
	}
	until(ctx, func() bool { return mem.waiting[1-process].Load() == 1 })
	sleep(ctx, 10*time.Millisecond)
}

// until polls a condition until it holds or ctx ends.
func until(ctx context.Context, holds func() bool) {
	for !holds() && ctx.Err() == nil {
		time.Sleep(100 * time.Microsecond)
	}
}

func (o *outcome) histogram() (*hdrhistogram.Histogram, error) {
	b, err := base64.StdEncoding.DecodeString(o.Waits)
	if err != nil {
		return nil, err
	}
	return hdrhistogram.Decode(b)
}
