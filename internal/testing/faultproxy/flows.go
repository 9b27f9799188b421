package faultproxy

import (
	"math/rand/v2"
	"slices"
	"time"
)

// A flow is a connection that exists already. The methods below fail existing flows
// alone: connections that are opened afterwards work. They take the connections'
// numbers, see [Command.Conn]; without numbers they mean all that exist.

// Forget is what a firewall, a NAT gateway or a load balancer does to a flow that was
// idle for too long: from now on nothing passes in either direction, the end of the
// connection included, and nobody is told. It lasts until Cut or Close; Heal does not
// end it. It returns how many flows it has hit.
func (p *Proxy) Forget(conns ...int) int {
	return p.each(conns, func(c *conn) {
		c.forgotten, c.deaf, c.mute = true, true, true
		c.queues[requests].items = nil
		c.queues[replies].items = nil
	})
}

// Hold keeps what clients send on these flows, the end of the connection included, until
// LetGo. Replies pass. It returns how many flows it has hit.
func (p *Proxy) Hold(conns ...int) int {
	return p.each(conns, func(c *conn) { c.held = true })
}

// LetGo delivers what Hold has kept, also if the client has closed its connection in the
// meantime, and not if the server has. It returns how many flows had something to deliver.
func (p *Proxy) LetGo() (delivered int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if c.held && len(c.queues[requests].items) > 0 {
			delivered++
		}
		c.held = false
		c.queues[requests].wakeUp()
	}
	return delivered
}

// HangUp resets these flows on the client's side alone. Requests that are under way to the
// server, or held, still reach it, and the end of the connection behind them.
func (p *Proxy) HangUp(conns ...int) int {
	return p.each(conns, func(c *conn) { reset(c.client) })
}

// Jitter delays each chunk that arrives from now on by up to d more than Delay says, in
// both directions, differently each time. Order is kept.
func (p *Proxy) Jitter(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.jitter = d
}

// jittered is how long the next chunk takes above the latency. The caller holds mu.
func (p *Proxy) jittered() time.Duration {
	if p.jitter <= 0 {
		return 0
	}
	return rand.N(p.jitter)
}

// each applies f, under mu, to the connections with these numbers, or to all.
func (p *Proxy) each(numbers []int, f func(*conn)) (hit int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if len(numbers) == 0 || slices.Contains(numbers, c.id) {
			f(c)
			hit++
		}
	}
	return hit
}
