package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/redis/go-redis/v9"
)

// How evenly a lock goes round among those who want it again and again, in each way to hold it,
// and how long a crowd takes that wants it once.

// locker is what describes a lock: an exclusive one, a shared one or a semaphore.
type locker interface {
	Key() string
	TryAcquire(ctx context.Context) (*redlock.Lock, error)
	Acquire(ctx context.Context) (*redlock.Lock, error)
	Do(ctx context.Context, fn func(ctx context.Context, lock *redlock.Lock) error) error
}

// contention is goroutines that take a lock again and again.
type contention struct {
	name string
	of   func(rl *redlock.Redlock, i int) locker
	room int  // how many can have it at a time; 0: some of them any number, so what could be is not known
	mute bool // nobody may PUBLISH
}

var contentions = []contention{
	{"three permits", func(rl *redlock.Redlock, _ int) locker { return rl.Semaphore("permits", 3) }, 3, false},
	{"one of four writes", oneOfFourWrites, 0, false},
	{"alone", func(rl *redlock.Redlock, _ int) locker { return rl.Mutex("alone") }, 1, false},
	{"three permits, no right to PUBLISH", func(rl *redlock.Redlock, _ int) locker { return rl.Semaphore("permits", 3) }, 3, true},
	{"one of four writes, no right to PUBLISH", oneOfFourWrites, 0, true},
}

func oneOfFourWrites(rl *redlock.Redlock, i int) locker {
	if i/4%4 == 0 {
		return rl.Mutex("page")
	}
	return rl.Mutex("page").Shared()
}

// contestHold is for how long each has the lock.
const contestHold = 10 * time.Millisecond

func (p *primitives) turns(ctx context.Context) error {
	fmt.Fprintln(p.out, "\n| again and again, for 10 ms each | holds | of what could be | wait: median | 99 % | longest | turns, fewest to most | scripts per hold and node |\n|---|---|---|---|---|---|---|---|")
	for _, c := range contentions {
		for _, n := range []int{16, 64} {
			if err := p.contention(ctx, c, n); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *primitives) contention(ctx context.Context, c contention, n int) error {
	if c.mute {
		if err := p.allowPublish(ctx, false); err != nil {
			return err
		}
		defer func() { _ = p.allowPublish(ctx, true) }()
	}
	before, err := p.scripts(ctx)
	if err != nil {
		return err
	}
	var clients []*redlock.Redlock
	for range 4 {
		rl, err := p.open(ctx, 10*time.Second)
		if err != nil {
			return err
		}
		defer rl.Close()
		clients = append(clients, rl)
	}
	limited, stop := context.WithTimeout(ctx, p.contestFor)
	defer stop()
	turns, waits := make([]int, n), make([][]time.Duration, n)
	var all sync.WaitGroup
	for i := range n {
		m := c.of(clients[i%len(clients)], i)
		all.Go(func() {
			for {
				start := time.Now()
				lock, err := m.Acquire(limited)
				if err != nil {
					return
				}
				waits[i] = append(waits[i], time.Since(start))
				turns[i]++
				time.Sleep(contestHold)
				_ = lock.Release(ctx)
			}
		})
	}
	all.Wait()
	took := slices.Concat(waits...)
	if slices.Sort(took); len(took) == 0 {
		return fmt.Errorf("%s: nobody had it", c.name)
	}
	after, err := p.scripts(ctx)
	if err != nil {
		return err
	}
	share := "-"
	if c.room > 0 {
		share = fmt.Sprintf("%.0f %%", 100*float64(len(took))*contestHold.Seconds()/(float64(c.room)*p.contestFor.Seconds()))
	}
	ms := func(part float64) float64 { return 1000 * took[int(part*float64(len(took)-1))].Seconds() }
	fmt.Fprintf(p.out, "| %s, %d goroutines | %d | %s | %.1f ms | %.1f ms | %.1f ms | %d to %d | %.1f |\n", c.name, n, len(took), share,
		ms(.5), ms(.99), ms(1), slices.Min(turns), slices.Max(turns), float64(after-before)/float64(len(took)*len(p.servers)))
	return nil
}

// eachServer runs f with a client of each server.
func (p *primitives) eachServer(f func(c *redis.Client) error) error {
	for _, s := range p.servers {
		c := redis.NewClient(&redis.Options{Addr: s.Addr()})
		err := f(c)
		_ = c.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *primitives) allowPublish(ctx context.Context, allow bool) error {
	rule := map[bool]string{true: "+publish", false: "-publish"}[allow]
	return p.eachServer(func(c *redis.Client) error { return c.Do(ctx, "ACL", "SETUSER", "default", rule).Err() })
}

// scripts is how many the servers have run.
func (p *primitives) scripts(ctx context.Context) (all int64, err error) {
	err = p.eachServer(func(c *redis.Client) error {
		info, err := c.Info(ctx, "commandstats").Result()
		n, _ := statOf(info, "cmdstat_evalsha")
		all += n
		return err
	})
	return all, err
}

// crowds are those of which all wait and each wants the lock once.
func (p *primitives) crowds(ctx context.Context) error {
	fmt.Fprintln(p.out, "\n| crowd | half of them had it after | all | longest script |\n|---|---|---|---|")
	for _, c := range []struct {
		name string
		of   func(rl *redlock.Redlock) locker
		room int
	}{
		{"readers behind a writer", func(rl *redlock.Redlock) locker { return rl.Mutex("readers").Shared() }, 0},
		{"waiters for five permits", func(rl *redlock.Redlock) locker { return rl.Semaphore("five", 5) }, 5},
	} {
		if err := p.crowd(ctx, c.name, c.of, c.room); err != nil {
			return err
		}
	}
	return nil
}

// crowd has all of them wait, then frees what was held, one or room permits.
func (p *primitives) crowd(ctx context.Context, name string, of func(*redlock.Redlock) locker, room int) error {
	var clients []*redlock.Redlock
	for range 4 {
		rl, err := p.open(ctx, time.Minute)
		if err != nil {
			return err
		}
		defer rl.Close()
		clients = append(clients, rl)
	}
	var held []*redlock.Lock
	for range max(room, 1) {
		m := of(clients[0])
		if room == 0 {
			m = clients[0].Mutex("readers")
		}
		lock, err := m.Acquire(ctx)
		if err != nil {
			return err
		}
		held = append(held, lock)
	}
	var mu sync.Mutex
	var came []time.Time
	var failed error
	var all sync.WaitGroup
	for i := range p.readers {
		m := of(clients[i%len(clients)])
		all.Go(func() {
			lock, err := m.Acquire(ctx)
			mu.Lock()
			if came = append(came, time.Now()); err != nil {
				failed = err
			}
			mu.Unlock()
			if err == nil {
				_ = lock.Release(ctx)
			}
		})
	}
	if err := p.awaitCrowd(ctx, of(clients[0]).Key()); err != nil {
		return err
	}
	const logged = 500 // us
	err := p.eachServer(func(c *redis.Client) error {
		if err := c.ConfigSet(ctx, "slowlog-log-slower-than", fmt.Sprint(logged)).Err(); err != nil {
			return err
		}
		return c.Do(ctx, "SLOWLOG", "RESET").Err()
	})
	if err != nil {
		return err
	}
	freed := time.Now()
	for _, lock := range held {
		_ = lock.Release(ctx)
	}
	if all.Wait(); failed != nil {
		return failed
	}
	longest := logged * time.Microsecond
	err = p.eachServer(func(c *redis.Client) error {
		slow, err := c.SlowLogGet(ctx, 1000).Result()
		for _, s := range slow {
			if len(s.Args) > 0 && strings.HasPrefix(strings.ToLower(s.Args[0]), "eval") {
				longest = max(longest, s.Duration)
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(p.out, "| %d %s | %v | %v | %v |\n", p.readers, name, came[len(came)/2].Sub(freed).Round(time.Millisecond),
		came[len(came)-1].Sub(freed).Round(time.Millisecond), longest)
	return nil
}

// awaitCrowd returns when all of the crowd stand in the queue.
func (p *primitives) awaitCrowd(ctx context.Context, key string) error {
	nodes, err := admin.Open(addrsOf(p.servers), nil)
	if err != nil {
		return err
	}
	defer nodes.Close()
	for {
		s, err := nodes.Inspect(ctx, key)
		if err != nil {
			return err
		}
		for _, n := range s.Nodes {
			if n.Waiting >= p.readers {
				return nil
			}
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
