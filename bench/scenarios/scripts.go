package scenarios

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/redlock/internal/testing/faultproxy"
	"github.com/quorumlock/redlock/internal/testing/realredis"
)

var oneServer = map[string]string{"rueidislock": "it has one deployment, and no list of nodes"}

// What strikes one node strikes the first, which is rueidislock's only server.
var all = []Scenario{
	{Number: 10, Title: "the servers' clocks are 6 s ahead, the lease is 5 s", nodes: 3, shim: true, script: clocksAhead},
	{Number: 18, Title: "one of five nodes refuses connections", nodes: 5, script: minority(refuse)},
	{Number: 19, Title: "one of five nodes hangs (SIGSTOP)", nodes: 5, script: minority(hang)},
	{Number: 20, Title: "packets to one of five nodes vanish", nodes: 5, script: minority(blackhole)},
	{Number: 21, Title: "one of five nodes takes 200 ms", nodes: 5, script: minority(slow)},
	{Number: 22, Title: "replies of two of three nodes to the first SET are lost", nodes: 3, script: lostReply},
	{Number: 23, Title: "one of three nodes executes the SET and breaks the connection: is it sent again?", nodes: 3, script: sentAgain},
	{Number: 24, Title: "replies of two of three nodes to the release are lost", nodes: 3, script: lostRelease},
	{Number: 25, Title: "SETs arrive at two of three nodes 900 ms late (redsync with ContextTimeoutEnabled)", nodes: 3, script: orphan},
	{Number: 26, Title: "releases of a failed attempt arrive 900 ms late (redsync with ContextTimeoutEnabled)", nodes: 3, script: lateRelease,
		skip: map[string]string{"rueidislock": "all goes over one connection, so nothing is overtaken"}},
	{Number: 29, Title: "the holder is cut off from three of five nodes, lease 3 s", nodes: 5, script: cutOff},
	{Number: 33, Title: "one of five nodes was restarted, pooled connections are stale", nodes: 5, script: stale},
	{Number: 35, Title: "one of the two nodes of three that a lock of 2 s is on restarts without its keys", nodes: 3, script: forgets},
	{Number: 38, Title: "FLUSHALL on three of five nodes under a lock of 3 s: when is the holder told?", nodes: 5, script: flushed},
	{Number: 40, Title: "three of five nodes are out of memory", nodes: 5, script: majority("CONFIG", "SET", "maxmemory", "1")},
	{Number: 41, Title: "three of five nodes are replicas", nodes: 5, script: majority("REPLICAOF", "127.0.0.1", "1")},
	{Number: 45, Title: "the password is wrong; no end of patience", nodes: 3, opts: []realredis.Option{realredis.Password("right")}, script: wrongPassword},
	{Number: 47, Title: "the key is a list on three of five nodes; a context of 2 s", nodes: 5, script: list},
	{Number: 51, Title: "the list of nodes is a, b, a", nodes: 2, script: twice, skip: oneServer},
	{Number: 54, Title: "all five nodes refuse connections", nodes: 5, script: allDown},
	{Number: 55, Title: "three of five nodes hang, and the context is cancelled after 100 ms", nodes: 5, script: cancelled},
	{Number: 56, Title: "the context is over before the call", nodes: 5, script: deadBefore},
	{Number: 58, Title: "the lease is over and another holds the lock when the first unlocks", nodes: 3, script: unlockAfterTheEnd},
	{Number: 60, Title: "unlock with a context that is over", nodes: 5, script: unlockWithDeadContext},
	{Number: 62, Title: "six clients that reach each node at another time lock at once, 8 times", nodes: 5, script: splitVotes},
	{Number: 63, Title: "32 goroutines of four clients want one key for 3 s", nodes: 5, script: contention},
	{Number: 65, Title: "the holder crashed, lease 7 s; no end of patience", nodes: 5, script: crashed},
	{Number: 73, Title: "all flows to five nodes go silent under a renewed lock of 5 s, and new connections work", nodes: 5, script: silent},
}

func refuse(p *play) error    { p.net[0].Refuse(); return nil }
func blackhole(p *play) error { p.net[0].Blackhole(); return nil }
func hang(p *play) error      { return p.servers[0].Pause() }
func slow(p *play) error {
	p.net[0].Delay(100*time.Millisecond, 100*time.Millisecond)
	return nil
}

// minority strikes one node of five and locks.
func minority(strike func(*play) error) func(*play) error {
	return func(p *play) error {
		c, err := p.ready(p.net, terms{})
		if err != nil {
			return err
		}
		if err := strike(p); err != nil {
			return err
		}
		g, err := p.lock(c, patience)
		if err != nil {
			return nil
		}
		if err := strike(p); err != nil { // where locking took so long that it was ended
			return err
		}
		p.unlock(g)
		p.mend()
		p.keysLeft(300 * time.Millisecond)
		return nil
	}
}

// majority does something to three nodes of five by a command, and tries once.
func majority(args ...any) func(*play) error {
	return func(p *play) error {
		c, err := p.ready(p.net, terms{})
		if err != nil {
			return err
		}
		if err := p.do(p, 3, args...); err != nil {
			return err
		}
		p.net[0].Reset()
		_, _ = p.try(c)
		p.count("times asked", p.asked())
		return nil
	}
}

// asked is how often the first node was asked to set a key of the lock: the one that it
// was asked for most often.
func (p *play) asked() (most int) {
	sent := make(map[string]int)
	for _, cmd := range p.net[0].Commands() {
		if p.ours(p.lib.acquires)(cmd.Args) {
			line := strings.Join(cmd.Args, " ")
			sent[line]++
			most = max(most, sent[line])
		}
	}
	return most
}

func clocksAhead(p *play) error {
	const ahead = 6 * time.Second
	if err := p.shim.Step(ahead); err != nil {
		return err
	}
	t := terms{ttl: 5 * time.Second}
	a, err := p.open(p.net, t)
	if err != nil {
		return err
	}
	b, err := p.open(p.net, t)
	if err != nil {
		return err
	}
	first, err := a.try(p, key)
	p.answer("first says", err)
	pause(p, 50*time.Millisecond)
	second, err := b.try(p, key)
	p.answer("second says", err)
	p.atOnce(time.Second, first, second)
	return nil
}

func lostReply(p *play) error {
	c, err := p.ready(p.net, terms{ttl: 5 * time.Second})
	if err != nil {
		return err
	}
	for _, link := range p.net[:2] {
		link.DropReply(1, faultproxy.DropCut, p.ours(p.lib.acquires))
	}
	if g, err := p.try(c); err == nil {
		defer g.unlock(p)
		return nil
	}
	p.keysLeft(500 * time.Millisecond)
	g, err := timed(p, "next lock", func() (grant, error) { return c.lock(p, key) })
	p.answer("next lock says", err)
	if err == nil {
		return g.unlock(p)
	}
	return nil
}

func sentAgain(p *play) error {
	c, err := p.ready(p.net, terms{})
	if err != nil {
		return err
	}
	p.net[0].Reset()
	p.net[0].DropReply(1, faultproxy.DropReset, p.ours(p.lib.acquires))
	_, _ = p.try(c)
	pause(p, 300*time.Millisecond)
	p.count("times sent", p.asked())
	return nil
}

func lostRelease(p *play) error {
	c, err := p.ready(p.net, terms{})
	if err != nil {
		return err
	}
	g, err := c.lock(p, key)
	if err != nil {
		return err
	}
	pause(p, 50*time.Millisecond)
	for _, link := range p.net[:2] {
		link.DropReply(1, faultproxy.DropCut, p.ours(p.lib.releases))
	}
	p.unlock(g)
	p.keysLeft(500 * time.Millisecond)
	return nil
}

const late = 900 * time.Millisecond

func orphan(p *play) error {
	c, err := p.ready(p.net, terms{strict: true})
	if err != nil {
		return err
	}
	for _, link := range p.net[:2] {
		link.DelayRequest(1, late, p.ours(p.lib.acquires))
	}
	began := time.Now()
	if g, err := p.try(c); err == nil {
		return g.unlock(p)
	}
	p.keysLeft(time.Until(began.Add(late + 600*time.Millisecond)))
	return nil
}

// lateRelease: another holds two of three nodes; the first attempt fails and is taken
// back by releases that are late; the second one wins all three before they arrive.
func lateRelease(p *play) error {
	a, err := p.ready(p.net, terms{strict: true})
	if err != nil {
		return err
	}
	others, err := p.network()
	if err != nil {
		return err
	}
	b, err := p.ready(others, terms{strict: true})
	if err != nil {
		return err
	}
	for i := 1; i < 3; i++ {
		if err := p.admins[i].Set(p, key, "somebody", time.Minute).Err(); err != nil {
			return err
		}
		p.net[i].DelayRequest(1, late, p.ours(p.lib.releases))
	}
	began := time.Now()
	free := make(chan error, 1)
	time.AfterFunc(100*time.Millisecond, func() {
		for _, admin := range p.admins[1:] {
			if err := admin.Del(p, key).Err(); err != nil {
				free <- err
				return
			}
		}
		free <- nil
	})
	first, err := p.lock(a, 5*time.Second)
	if ferr := <-free; ferr != nil {
		return ferr
	}
	if err != nil {
		return nil
	}
	second := p.tryUntil(b, began.Add(late+time.Second))
	p.atOnce(2*time.Second, first, second)
	return nil
}

func cutOff(p *play) error {
	t := terms{ttl: 3 * time.Second, renew: true}
	a, err := p.ready(p.net, t)
	if err != nil {
		return err
	}
	others, err := p.network()
	if err != nil {
		return err
	}
	b, err := p.ready(others, t)
	if err != nil {
		return err
	}
	first, err := a.lock(p, key)
	if err != nil {
		return err
	}
	pause(p, 100*time.Millisecond)
	for _, link := range p.net[:3] {
		link.Blackhole()
	}
	began := time.Now()
	told := make(chan time.Duration, 1)
	go func() {
		for first.holds() && p.Err() == nil {
			pause(p, time.Millisecond)
		}
		told <- time.Since(began)
	}()
	_, err = b.lock(p, key)
	granted := time.Since(began)
	if err != nil {
		p.answer("another says", err)
		return nil
	}
	p.took("another granted after", granted)
	d := <-told
	p.took("holder told after", d)
	p.took("both hold for", max(0, d-granted))
	return nil
}

func stale(p *play) error {
	c, err := p.ready(p.net, terms{})
	if err != nil {
		return err
	}
	if err := p.servers[0].Restart(); err != nil { // by kill -9
		return err
	}
	failed, slowest := 0, time.Duration(0)
	for range 5 {
		ctx, cancel := context.WithTimeout(p, patience/2)
		began := time.Now()
		g, err := c.lock(ctx, key)
		cancel()
		slowest = max(slowest, time.Since(began))
		if err != nil {
			failed++
		} else if g.unlock(p) != nil {
			failed++
		}
	}
	p.count("failed of 5", failed)
	p.took("slowest lock", slowest)
	return nil
}

func forgets(p *play) error {
	const ttl = 2 * time.Second
	began := time.Now()
	a, err := p.ready(p.net, terms{ttl: ttl})
	if err != nil {
		return err
	}
	others, err := p.network()
	if err != nil {
		return err
	}
	b, err := p.ready(others, terms{ttl: ttl})
	if err != nil {
		return err
	}
	// Servers that are all new are taken for a first start by the restart guard.
	pause(p, time.Until(began.Add(ttl+2*time.Second)))
	p.net[2].Refuse()
	first, err := a.lock(p, key)
	if err != nil {
		return err
	}
	granted := time.Now()
	pause(p, 20*time.Millisecond)
	if err := p.servers[0].Restart(); err != nil {
		return err
	}
	second := p.tryUntil(b, granted.Add(2*ttl))
	if second == nil {
		p.said("another", "not granted")
		return nil
	}
	p.took("another granted after", time.Since(granted))
	p.atOnce(2*time.Second, first, second)
	return nil
}

func flushed(p *play) error {
	c, err := p.ready(p.net, terms{ttl: 3 * time.Second, renew: true})
	if err != nil {
		return err
	}
	g, err := c.lock(p, key)
	if err != nil {
		return err
	}
	pause(p, 100*time.Millisecond)
	if err := p.do(p, 3, "FLUSHALL"); err != nil {
		return err
	}
	began := time.Now()
	for g.holds() && p.Err() == nil {
		pause(p, time.Millisecond)
	}
	p.took("holder told after", time.Since(began))
	return nil
}

func wrongPassword(p *play) error {
	_, err := timed(p, "returns after", func() (grant, error) {
		c, err := p.open(p.net, terms{ttl: 8 * time.Second, password: "wrong"})
		if err != nil {
			return nil, err
		}
		return c.lock(p, key)
	})
	p.answer("says", err)
	return nil
}

func list(p *play) error {
	c, err := p.ready(p.net, terms{})
	if err != nil {
		return err
	}
	for _, k := range p.lib.keys(key) {
		if err := p.do(p, 3, "RPUSH", k, "x"); err != nil {
			return err
		}
	}
	_, _ = p.lock(c, patience)
	return nil
}

func twice(p *play) error {
	n := network{p.net[0], p.net[1], p.net[0]}
	c, err := p.open(n, terms{ttl: 8 * time.Second, byAddress: true})
	p.answer("opening says", err)
	if err != nil {
		return nil
	}
	p.net[0].Refuse()
	ctx, cancel := context.WithTimeout(p, patience)
	defer cancel()
	_, err = c.lock(ctx, key)
	p.answer("lock without a says", err)
	return nil
}

func allDown(p *play) error {
	c, err := p.ready(p.net, terms{})
	if err != nil {
		return err
	}
	for _, link := range p.net {
		link.Refuse()
	}
	_, _ = p.try(c)
	before := runtime.NumGoroutine()
	var tries sync.WaitGroup
	for range 50 {
		tries.Go(func() { _, _ = c.try(p, key) })
	}
	tries.Wait()
	pause(p, 500*time.Millisecond)
	p.count("goroutines more after 50 tries", max(0, runtime.NumGoroutine()-before))
	return nil
}

func cancelled(p *play) error {
	c, err := p.ready(p.net, terms{})
	if err != nil {
		return err
	}
	for _, s := range p.servers[:3] {
		if err := s.Pause(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(p)
	defer cancel()
	time.AfterFunc(100*time.Millisecond, cancel)
	_, err = timed(p, "returns after", func() (grant, error) { return c.lock(ctx, key) })
	p.answer("says", err)
	if p.mend(); err != nil { // otherwise they are those of the lock that it returned
		p.keysLeft(500 * time.Millisecond)
	}
	return nil
}

func deadBefore(p *play) error {
	c, err := p.ready(p.net, terms{})
	if err != nil {
		return err
	}
	for _, link := range p.net {
		link.Reset()
	}
	_, err = c.lock(ended(), key)
	p.answer("says", err)
	pause(p, 200*time.Millisecond)
	sent := 0
	for _, link := range p.net {
		sent += link.CountFunc(func(cmd faultproxy.Command) bool {
			return p.ours(func([]string) bool { return true })(cmd.Args)
		})
	}
	p.count("commands sent", sent)
	return nil
}

func unlockAfterTheEnd(p *play) error {
	const ttl = time.Second
	a, err := p.ready(p.net, terms{ttl: ttl})
	if err != nil {
		return err
	}
	b, err := p.ready(p.net, terms{ttl: 8 * time.Second})
	if err != nil {
		return err
	}
	first, err := a.lock(p, key)
	if err != nil {
		return err
	}
	if p.lib.renews { // its lease ends if somebody deletes the keys
		for _, k := range p.lib.keys(key) {
			if err := p.do(p, 1, "DEL", k); err != nil {
				return err
			}
		}
	}
	pause(p, ttl+100*time.Millisecond)
	if _, err := b.lock(p, key); err != nil {
		return err
	}
	pause(p, 100*time.Millisecond)
	before := p.values(p, p.lib.keys(key))
	p.unlock(first)
	pause(p, 200*time.Millisecond)
	lost := 0
	for i, v := range p.values(p, p.lib.keys(key)) {
		if v != before[i] {
			lost++
		}
	}
	p.count("keys that the next holder lost", lost)
	return nil
}

func unlockWithDeadContext(p *play) error {
	c, err := p.ready(p.net, terms{})
	if err != nil {
		return err
	}
	g, err := c.lock(p, key)
	if err != nil {
		return err
	}
	pause(p, 50*time.Millisecond)
	p.answer("unlock says", g.unlock(ended()))
	p.keysLeft(300 * time.Millisecond)
	return nil
}

func splitVotes(p *play) error {
	const contenders, rounds, hold = 6, 8, 5 * time.Millisecond
	var clients []locker
	for i := range contenders {
		n, err := p.network()
		if err != nil {
			return err
		}
		c, err := p.ready(n, terms{})
		if err != nil {
			return err
		}
		for j, link := range n {
			link.Delay(time.Duration((i+j)%5)*time.Millisecond, 0)
		}
		clients = append(clients, c)
	}
	var inside, most, failed atomic.Int64
	var first, last time.Duration // of the worst rounds
	for range rounds {
		began := time.Now()
		var done sync.WaitGroup
		var served atomic.Int64
		for _, c := range clients {
			done.Go(func() {
				ctx, cancel := context.WithTimeout(p, patience/2)
				defer cancel()
				g, err := c.lock(ctx, key)
				if err != nil {
					failed.Add(1)
					return
				}
				if served.Add(1) == 1 {
					first = max(first, time.Since(began))
				}
				raise(&most, inside.Add(1))
				pause(p, hold)
				inside.Add(-1)
				_ = g.unlock(p)
			})
		}
		done.Wait()
		last = max(last, time.Since(began))
		pause(p, 20*time.Millisecond) // for what is still to be taken back
	}
	p.took("first granted within", first)
	p.took("all done within", last)
	p.count("failed of 48", int(failed.Load()))
	p.count("holders at once", int(most.Load()))
	return nil
}

func contention(p *play) error {
	const processes, each, window = 4, 8, 3 * time.Second
	var clients []locker
	for range processes {
		n, err := p.network()
		if err != nil {
			return err
		}
		c, err := p.ready(n, terms{})
		if err != nil {
			return err
		}
		clients = append(clients, c)
	}
	ctx, cancel := context.WithTimeout(p, window)
	defer cancel()
	var (
		done         sync.WaitGroup
		inside, most atomic.Int64
		served       [processes * each]int
		longest      [processes * each]time.Duration
	)
	for i := range served {
		done.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				g, err := clients[i%processes].lock(ctx, key)
				longest[i] = max(longest[i], time.Since(began))
				if err != nil {
					continue
				}
				raise(&most, inside.Add(1))
				runtime.Gosched()
				inside.Add(-1)
				served[i]++
				_ = g.unlock(p)
			}
		})
	}
	done.Wait()
	total, least, greatest, wait := 0, served[0], 0, time.Duration(0)
	for i, n := range served {
		total += n
		least, greatest, wait = min(least, n), max(greatest, n), max(wait, longest[i])
	}
	p.count("cycles", total)
	p.count("fewest of a goroutine", least)
	p.count("most of a goroutine", greatest)
	p.took("longest wait", wait)
	p.count("holders at once", int(most.Load()))
	return nil
}

func crashed(p *play) error {
	t := terms{ttl: 7 * time.Second}
	a, err := p.ready(p.net, t)
	if err != nil {
		return err
	}
	others, err := p.network()
	if err != nil {
		return err
	}
	b, err := p.ready(others, t)
	if err != nil {
		return err
	}
	if _, err := a.lock(p, key); err != nil {
		return err
	}
	pause(p, 50*time.Millisecond)
	for _, link := range p.net {
		link.Blackhole() // nothing more of it will arrive
	}
	_, err = timedFor(p, "lock returns after", 8500*time.Millisecond, func() (grant, error) { return b.lock(p, key) })
	p.answer("lock says", err)
	return nil
}

// raise sets v to n if that is more.
func raise(v *atomic.Int64, n int64) {
	for {
		was := v.Load()
		if n <= was || v.CompareAndSwap(was, n) {
			return
		}
	}
}
