package scenarios

import (
	"context"
	"time"
)

// silent is about flows that a firewall forgot: how long until the next lock, and whether a
// lock that is renewed, by the library or by hand, outlives them.
func silent(p *play) error {
	const ttl, most = 5 * time.Second, 6 * time.Second
	c, err := p.ready(p.net, terms{ttl: ttl, renew: true, byAddress: true})
	if err != nil {
		return err
	}
	g, err := c.lock(p, renewed)
	if err != nil {
		return err
	}
	pause(p, 100*time.Millisecond)
	ctx, cancel := context.WithTimeout(p, most)
	defer cancel()
	for _, l := range p.net {
		l.Forget()
	}
	if e, ok := g.(extender); ok {
		go renewByHand(ctx, e, ttl/3)
	}
	lostAt := make(chan time.Duration, 1)
	go func() { lostAt <- p.watch(ctx) }()
	next, err := timedFor(p, "the next lock", most, func() (next grant, err error) {
		for next == nil && ctx.Err() == nil {
			next, err = c.lock(ctx, key)
		}
		return next, err
	})
	if d := <-lostAt; d > 0 {
		p.took("the renewed lock is lost after", d)
	} else {
		p.said("the renewed lock", "is kept")
	}
	if err == nil {
		_ = next.unlock(p)
	}
	return nil
}

// renewed is the key of a lock that is renewed.
const renewed = "renewed"

func renewByHand(ctx context.Context, e extender, every time.Duration) {
	for ctx.Err() == nil {
		_ = e.extend(ctx)
		pause(ctx, every)
	}
}

// watch is after what time the servers have no majority of the renewed lock's keys any more,
// 0 if they have it until ctx ends.
func (p *play) watch(ctx context.Context) time.Duration {
	began := time.Now()
	have := func() (n int) {
		for _, v := range p.values(p, p.lib.keys(renewed)) {
			if v != "" {
				n++
			}
		}
		return n
	}
	for all := have(); ctx.Err() == nil; pause(ctx, 10*time.Millisecond) {
		if have() <= all/2 {
			return time.Since(began)
		}
	}
	return 0
}
