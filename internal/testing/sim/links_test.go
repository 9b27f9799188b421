package sim_test

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock/internal/conn"
	"github.com/quorumlock/redlock/internal/inside"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/fakenode"
)

// What it takes to reach a node. In plans with links the library connects as it does to real servers, by the Dialer of
// a user's client, which looks a name up, opens a connection and speaks TLS.

// simLinks is what connections cost.
type simLinks struct {
	TLS       int           `json:",omitempty"` // round trips of its handshake
	Handshake time.Duration `json:",omitempty"` // for so long it keeps the server, which does nothing else meanwhile
	Forgets   time.Duration `json:",omitempty"` // something on the way forgets what was idle for longer
	Late      time.Duration `json:",omitempty"` // each message takes so much more until Until
	Idle      time.Duration `json:",omitempty"` // clients of New end connections that were idle for so long; 0: for a minute
}

// costs are those that a plan may do without.
func (l *simLinks) costs() (all []*time.Duration) {
	if l != nil {
		all = []*time.Duration{&l.Handshake, &l.Forgets, &l.Late}
	}
	return all
}

// Faults of plans with links.
const (
	linkLookup    = "lookup"    // Node's name takes By to be looked up
	linkDead      = "dead"      // of the addresses of Node's name the first is dead
	linkDead6     = "dead6"     // and it is of IPv6, so that the other one is tried beside it
	linkSentinel  = "sentinel"  // the Sentinel that is asked for Node first hangs, and is given up after By
	linkHang      = "dialer"    // a Dialer to Node returns when its context ends; with Ever, never
	linkMoved     = "moved"     // Node's name leads to another server from At on, and the one of before goes on
	linkHangUp    = "hangup"    // Node ends a connection over which it is sent a SET
	linkUnwelcome = "unwelcome" // Node answers Says to the first question over a connection
)

// simIdle is the regime of programs that ask now and then, over connections that cost something.
const simIdle = "idle"

// drawIdle has what the library copes with: links that leave room for connecting in a node timeout, and a node of
// three, or two of five, to which something happens. The scenes of rows_test.go have the rest.
func (p *simPlan) drawIdle(r *rand.Rand) {
	in := func(lo, hi time.Duration) time.Duration { return lo + time.Duration(r.Int64N(int64(hi-lo)+1)) }
	p.Regime, p.Strict = simIdle, false
	p.TTL = in(10*time.Second, time.Minute)
	p.NodeTimeout = protocol.NodeTimeout(p.TTL)
	p.Links = &simLinks{TLS: r.IntN(3), Handshake: in(0, 15*time.Millisecond)}
	if p.Users = r.IntN(2) == 0; p.Users && r.IntN(2) == 0 {
		p.Links.Forgets = in(61*time.Second, 3*time.Minute)
	}
	p.Delay = in(100*time.Microsecond, 4*time.Millisecond)
	p.Jitter = in(p.Delay/10, p.Delay)
	p.Fenced = nil
	for range 2 + r.IntN(3) {
		proc := simProcessPlan{PPM: r.Int64N(9900) - 4950}
		for range 1 + r.IntN(2) {
			c := simClientPlan{Key: len(p.Fenced), Every: in(time.Second, 2*time.Minute)}
			if c.Ops = 4 + r.IntN(8); r.IntN(3) == 0 {
				c.Hold = in(0, p.TTL/2)
			}
			p.Fenced = append(p.Fenced, false)
			proc.Clients = append(proc.Clients, c)
		}
		p.Processes = append(p.Processes, proc)
	}
	p.Until = 5 * time.Minute
	if r.IntN(3) == 0 {
		p.with(simFault{Kind: linkLookup, For: p.Until, By: in(0, 20*time.Millisecond)})
	}
	n := len(p.Nodes)
	for _, node := range r.Perm(n)[:r.IntN(n-quorumOf(n)+1)] {
		f := simFault{Node: node, At: in(0, p.Until/2), For: in(0, p.Until/2)}
		switch r.IntN(4) {
		case 0, 1:
			f.Kind, f.At = linkDead6, 0
		case 2:
			f.Kind, f.By = linkLookup, in(0, time.Second)
		default:
			f.Kind, f.For = faultHang, in(0, time.Second)
		}
		p.Faults = append(p.Faults, f)
	}
}

// How long Go and go-redis take, see net.Dialer.
const (
	beside    = 300 * time.Millisecond // until an IPv4 address is tried beside one of IPv6
	leastDial = 2 * time.Second        // what an address gets of what is left, if there is so much
)

// usersDialTimeout is that of a client which sets none.
var usersDialTimeout = func() time.Duration {
	c := redis.NewClient(&redis.Options{Addr: "localhost:0"})
	defer c.Close()
	return c.Options().DialTimeout
}()

// linkAt is the fault of that kind which a node has at t; nil: none.
func (w *simWorld) linkAt(t int64, node int, kind string) *simFault {
	for i := range w.plan.Faults {
		if f := &w.plan.Faults[i]; f.Kind == kind && f.Node == node && t >= int64(f.At) && t < int64(f.At+f.For) {
			return f
		}
	}
	return nil
}

// opened has the dialer connect as the library does.
func (d *simDialer) opened() {
	plan := d.p.w.plan
	if plan.Links == nil {
		return
	}
	patience := inside.DialTimeout
	if plan.Users {
		patience = usersDialTimeout
	}
	d.connect = conn.Connector(&redis.Options{Network: "sim", DialTimeout: patience * simFine, Dialer: d.open})
}

// simConn is a flow as a Dialer returns it.
type simConn struct {
	net.Conn
	flow *simFlow
}

func (c simConn) Close() error { c.flow.Close(); return nil }

func (d *simDialer) dial(ctx context.Context) (conn.Flow, error) {
	c, err := d.connect(ctx)
	w := d.p.w
	if err != nil { // what ended it goes on at this very moment
		roll := w.mix('D', uint64(d.p.i), uint64(d.n.i), uint64(w.t()))
		w.sleep(1+int64(roll%1000), roll)
	}
	d.p.gate()
	if err != nil {
		return nil, err
	}
	flow := c.(simConn).flow
	w.conns.opened(flow)
	return flow, nil
}

// open is a user's Dialer.
func (d *simDialer) open(ctx context.Context, _, _ string) (net.Conn, error) {
	simRoom(false)
	w := d.p.w
	if f := w.linkAt(w.t(), d.n.i, linkHang); f != nil {
		ended := ctx.Done()
		if f.Ever {
			ended = nil
		}
		select {
		case <-ended:
		case <-w.over:
		}
		return nil, errSimDial
	}
	flow := d.newFlow()
	defer context.AfterFunc(ctx, flow.Close)()
	err := flow.find(ctx)
	if err == nil {
		err = flow.reach()
	}
	if err != nil {
		flow.Close()
		if !errors.Is(err, syscall.ECONNREFUSED) {
			err = &net.OpError{Op: "dial", Net: "sim", Err: err}
		}
		return nil, err
	}
	return simConn{flow: flow}, nil
}

// find gets to the address that answers.
func (f *simFlow) find(ctx context.Context) error {
	d, w := f.d, f.d.p.w
	at, node := w.t(), f.d.n.i
	if l := w.linkAt(at, node, linkLookup); l != nil {
		w.reached("a name is slow to be looked up", true)
		if err := f.wait(at + int64(l.By)); err != nil {
			return err
		}
	}
	if l := w.linkAt(at, node, linkSentinel); l != nil && !d.knows(false) {
		if err := f.wait(w.t() + int64(l.By)); err != nil {
			return err
		}
		d.knows(true)
	}
	if l := w.linkAt(at, node, linkDead6); l != nil {
		w.reached("a name has an address that is dead", true)
		if err := f.wait(w.t() + int64(beside)); err != nil {
			return err
		}
	}
	if l := w.linkAt(at, node, linkDead); l != nil {
		if err := f.wait(w.t() + int64(firstShare(ctx))); err != nil {
			return err
		}
	}
	f.n = d.n.led(d.p)
	return nil
}

// firstShare is how long the first of two addresses is waited for.
func firstShare(ctx context.Context) time.Duration {
	end, ok := ctx.Deadline()
	if !ok {
		return time.Duration(never)
	}
	left := time.Until(end) / simFine
	return max(left/2, min(left, leastDial))
}

// knows reports whether the Sentinel that answers was found, as it is with now.
func (d *simDialer) knows(now bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.found = d.found || now
	return d.found
}

// reach opens the connection.
func (f *simFlow) reach() error {
	p, n, w := f.d.p, f.n, f.d.p.w
	roll := f.roll('c')
	t := w.t()
	w.conns.note(&w.conns.begun, p, n, t)
	if _, cut := w.faultAt(t, p.i, n.i, faultCut, faultCutOut, faultCutBack); cut {
		return f.wait(t + never)
	}
	if err := f.wait(t + 2*w.trip(roll)); err != nil {
		return err
	}
	if _, down := w.faultAt(w.t(), -1, n.i, faultCrash, faultStale, faultForget, faultSwap, faultPromote); down {
		return errSimRefused
	}
	f.born = w.t()
	f.links.usedAt = f.born
	f.gen, _ = n.generation(f.born)
	for i := range w.plan.Links.TLS {
		roll = mix(roll, uint64(i))
		at := w.t() + w.trip(roll)
		if i == 0 {
			at = n.handshake(at)
		}
		if err := f.wait(n.serves(at) + w.trip(mix(roll, 'b'))); err != nil {
			return err
		}
		if gen, _ := n.generation(w.t()); gen != f.gen {
			return errSimReset
		}
	}
	f.used(w.t())
	return nil
}

// handshake has the server shake hands with a client that begins at t, after those that came before, and returns when
// it is done. It is so even if that client has gone.
func (n *simNode) handshake(t int64) int64 {
	at := n.w.available(n, t)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.busy = max(n.busy, at) + int64(n.w.plan.Links.Handshake)
	return n.busy
}

// serves is when the server looks at what came at t.
func (n *simNode) serves(t int64) int64 {
	at := n.w.available(n, t)
	if n.w.plan.Links == nil {
		return at
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return max(at, n.busy)
}

// simLinkState is what becomes of a connection by its links; the flow's mutex guards it.
type simLinkState struct {
	usedAt    int64 // when something was sent or heard last
	forgotten bool  // by something on the way
	turned    bool  // the server has ended it
	isOpen    bool  // it counts, guarded by simConnects.mu
}

// used notes that something is sent or heard.
func (f *simFlow) used(t int64) {
	l := f.d.p.w.plan.Links
	if l == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.links.forgotten = f.links.forgotten || l.Forgets > 0 && t-f.links.usedAt > int64(l.Forgets)
	f.links.usedAt = t
}

func (f *simFlow) wasForgotten() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.links.forgotten
}

func (f *simFlow) wasTurnedAway() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.links.turned
}

// turnedAway is what a server answers that serves no new client. One that is full ends the connection, too.
func (f *simFlow) turnedAway() error {
	l := f.n.w.linkAt(f.n.w.t(), f.n.i, linkUnwelcome)
	if l == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.links.turned = strings.Contains(l.Says, "max number of clients")
	return fakenode.Error(l.Says)
}

// hangsUp has the server end the connection if a batch has a SET.
func (f *simFlow) hangsUp(batch []*lane.Call) bool {
	w := f.d.p.w
	t := w.t()
	if w.plan.Links == nil || w.linkAt(t, f.n.i, linkHangUp) == nil ||
		!slices.ContainsFunc(batch, func(c *lane.Call) bool { return c.Req.Op.Sets() }) {
		return false
	}
	err := cmp.Or(f.wait(t+2*w.trip(f.roll('H'))), errSimReset)
	for _, c := range batch {
		c.Answer.Said, c.Answer.Sent = err, true
	}
	return true
}
