package redlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
)

// The library's conversations over a simulated network: connections that break, that go
// silent, and whose bytes arrive when nobody expects them any more.

const (
	faultMute = "mute" // the flows from Proc to Node that exist at At die, and nobody is told
	faultBusy = "busy" // Node answers all but the beginning of connections with BUSY
)

// drawConversations adds to some plans what can happen to connections. It draws from a
// source of its own, so that what a seed had before it still has.
func (p *simPlan) drawConversations() {
	r := rand.New(rand.NewPCG(p.Seed, 0xc09f))
	in := func(lo, hi time.Duration) time.Duration { return lo + time.Duration(r.Int64N(int64(hi-lo)+1)) }
	p.Users = r.IntN(3) == 0
	p.NoKill = !p.Strict && r.IntN(4) == 0
	if p.Calm || r.IntN(2) > 0 {
		return
	}
	for range 1 + r.IntN(3) {
		f := simFault{Kind: faultMute, Node: r.IntN(len(p.Nodes)), Proc: r.IntN(len(p.Processes)), At: in(0, p.Until)}
		p.Faults = append(p.Faults, f)
		for i := range p.Nodes {
			if i != f.Node && r.IntN(3) == 0 { // a firewall is rarely in the way of one node alone
				p.Faults = append(p.Faults, simFault{Kind: faultMute, Node: i, Proc: f.Proc, At: f.At})
			}
		}
	}
	if r.IntN(3) == 0 { // a slow script, often just when connections have died
		f := simFault{Kind: faultBusy, Node: r.IntN(len(p.Nodes)), At: in(0, p.Until), For: in(0, 2*p.NodeTimeout)}
		if r.IntN(2) == 0 {
			f.Node, f.At = p.Faults[len(p.Faults)-1].Node, p.Faults[len(p.Faults)-1].At
		}
		p.Faults = append(p.Faults, f)
	}
}

// simWire is the way from one process to one server.
type simWire struct {
	*conversations
	p *simProcess
	n *simNode
}

func newSimWire(p *simProcess, n *simNode) *simWire {
	s := &simWire{p: p, n: n}
	h := habits{keep: 1, idle: 5 * time.Second}
	if p.w.plan.Users {
		h = userHabits
	}
	s.conversations = newConversations(&wireClock{simProcess: p, id: int64(1000 * (n.i + 1))}, s, h)
	return s
}

// wireClock keeps apart what conversations do at the same time.
type wireClock struct {
	*simProcess
	id int64
}

func (c *wireClock) yield(id int64) { c.simProcess.yield(id + c.id) }

func (c *wireClock) afterFunc(d time.Duration, f func()) timer {
	return c.timer(c.id+int64(mix(uint64(d))%500), d, func() {
		c.gate()
		f()
	})
}

var (
	errSimReset   = errors.New("EOF")
	errSimClosed  = errors.New("use of closed connection")
	errSimRefused = &net.OpError{Op: "dial", Net: "sim", Err: syscall.ECONNREFUSED}
	errSimDial    = &net.OpError{Op: "dial", Net: "sim", Err: errors.New("i/o timeout")}
)

// simFlow is one connection.
type simFlow struct {
	s        *simWire
	gen      int   // of the server that it leads to
	id       int64 // of the client, there
	openedAt int64
	closed   chan struct{}
	once     sync.Once
	unwell   bool // it was closed by the server, and that was not seen
}

func (s *simWire) dial(context.Context, time.Duration) (opened, error) {
	f := &simFlow{s: s, gen: -1, closed: make(chan struct{})}
	if s.p.w.plan.Users {
		return opened{flow: f}, nil // as a pool does it, when it is first used
	}
	return opened{flow: f}, f.connect()
}

func (f *simFlow) connect() error {
	p, n, w := f.s.p, f.s.n, f.s.p.w
	t := w.t()
	roll := w.mix('d', uint64(p.i), uint64(n.i), uint64(t))
	if _, cut := w.faultAt(t, p.i, n.i, faultCut, faultCutOut, faultCutBack); cut {
		f.wait(t+int64(w.plan.NodeTimeout), roll)
		return errSimDial
	}
	f.wait(t+2*w.trip(roll), roll)
	if f.isClosed() {
		return errSimDial
	}
	t = w.t()
	if _, down := w.faultAt(t, -1, n.i, faultCrash, faultForget, faultSwap, faultPromote); down {
		return errSimRefused
	}
	f.gen, _ = n.generation(t)
	f.openedAt = t
	n.mu.Lock()
	defer n.mu.Unlock()
	// Ids begin anew with each process.
	n.clients[f.gen]++
	f.id = n.clients[f.gen]
	return nil
}

// simClient is a connection as the server knows it.
type simConn struct {
	gen int
	id  int64
}

// wait waits until a time, or until the flow is closed.
func (f *simFlow) wait(until int64, roll uint64) {
	w := f.s.p.w
	var late <-chan time.Time
	if until < never {
		late = time.After(w.fine(until-w.t(), roll))
	}
	select {
	case <-late:
	case <-f.closed:
		// Whoever has closed it goes on at the same moment.
		w.sleep(1+int64(roll%1000), roll)
	case <-w.over:
	}
	f.s.p.gate()
}

func (f *simFlow) isClosed() bool {
	select {
	case <-f.closed:
		return true
	default:
		return false
	}
}

func (f *simFlow) close() { f.once.Do(func() { close(f.closed) }) }

func (f *simFlow) heard() int64 { return 0 }

// muted reports whether the flow has been silent since before t.
func (f *simFlow) muted(t int64) bool {
	return slices.ContainsFunc(f.s.p.w.plan.Faults, func(m simFault) bool {
		return m.Kind == faultMute && m.Proc == f.s.p.i && m.Node == f.s.n.i && f.openedAt < int64(m.At) && int64(m.At) <= t
	})
}

// alive: half of the connections to a server that died were closed in a way that shows; on
// a user's client nothing shows.
func (f *simFlow) alive() bool {
	if f.isClosed() {
		return false
	}
	t := f.s.p.w.t()
	gen, _ := f.s.n.generation(t)
	return f.s.p.w.plan.Users || gen == f.gen || f.s.p.w.mix('v', uint64(f.id), uint64(t))%2 == 0
}

// simFate is what becomes of one message and its answer.
type simFate struct {
	lost   bool    // it never arrives
	arrive []int64 // when it does: usually once
	silent bool    // no answer comes
	breaks int64   // when the connection breaks instead of an answer; 0: it does not
	back   int64   // when the answer comes
	part   int     // of 1000 answers so many come before it breaks; negative: all
}

// fate draws what becomes of what is sent now. Only batches meet the rates of the plan.
func (f *simFlow) fate(batch bool, roll uint64) (fate simFate) {
	p, n, w := f.s.p, f.s.n, f.s.p.w
	t := w.t()
	within := func(salt uint64, d time.Duration) int64 { return int64(mix(roll, salt) % uint64(d+1)) }
	falls := func(permille int, salt uint64) bool {
		return batch && t < int64(w.plan.Until) && int(mix(roll, salt)%1000) < permille
	}
	there, back := w.trip(roll), w.trip(mix(roll, 'b'))
	if falls(w.plan.Slow, 1) {
		there += within(2, w.plan.NodeTimeout*3/2)
	}
	if falls(w.plan.Slow, 3) {
		back += within(4, w.plan.NodeTimeout*3/2)
	}
	fate.part = -1
	_, cutOut := w.faultAt(t, p.i, n.i, faultCut, faultCutOut)
	if cutOut || f.muted(t) || falls(w.plan.Lost, 5) {
		return simFate{lost: true, silent: true}
	}
	if falls(w.plan.Late, 6) {
		fate.arrive = []int64{t + there + within(7, 2*w.plan.TTL)}
		if fate.silent = falls(500, 8); !fate.silent {
			fate.breaks = t + 1 + within(9, w.plan.NodeTimeout)
		}
		return fate
	}
	if falls(w.plan.Torn, 15) {
		fate.arrive, fate.breaks = []int64{t + there + within(16, w.plan.NodeTimeout/2)}, t+1+there/2
		return fate
	}
	reset := falls(w.plan.Reset, 10)
	if reset && falls(300, 11) {
		return simFate{lost: true, breaks: t + there}
	}
	at := w.available(n, t+there)
	fate.arrive, fate.back = []int64{at}, at+back
	if falls(w.plan.Twice, 12) {
		fate.arrive = append(fate.arrive, at+within(13, 2*w.plan.TTL))
	}
	_, cutBack := w.faultAt(at, p.i, n.i, faultCut, faultCutBack)
	fate.silent = cutBack || f.muted(at+back)
	if reset {
		fate.breaks, fate.part = at+back, int(mix(roll, 14)%1000)
	}
	return fate
}

// carry has the server do something, if it is there and still knows the connection, and
// waits for the answer. Part is the share of the answers that came before it broke.
func (f *simFlow) carry(batch bool, do func()) (part int, sent bool, err error) {
	p, n, w := f.s.p, f.s.n, f.s.p.w
	if f.gen < 0 {
		if err := f.connect(); err != nil {
			return 0, false, err
		}
	}
	t := w.t()
	roll := w.mix('s', uint64(p.i), uint64(n.i), uint64(t), uint64(f.id))
	switch gen, _ := n.generation(t); {
	case f.isClosed():
		return 0, false, errSimClosed
	case gen != f.gen:
		f.wait(t+int64(roll%5000), roll)
		return 0, true, errSimReset
	}
	fate := f.fate(batch, roll)
	done := make(chan struct{})
	for i, at := range fate.arrive {
		w.after(at-t, w.mix(uint64(p.i), uint64(n.i), uint64(f.id), uint64(i)), func() {
			n.mu.Lock()
			gone := n.killed[simConn{f.gen, f.id}]
			n.mu.Unlock()
			if now, _ := n.generation(w.t()); now != f.gen || gone {
				return
			}
			do()
			if i == 0 {
				close(done)
			}
		})
	}
	switch {
	case fate.breaks > 0:
		f.wait(fate.breaks, roll)
	case fate.silent:
		f.wait(never, roll)
		return 0, true, errSimClosed
	default:
		f.wait(fate.back, roll)
	}
	select {
	case <-done:
	default:
		return 0, true, errSimReset
	}
	died, _ := n.generation(w.t())
	switch {
	case f.isClosed():
		return 0, true, errSimClosed
	case died != f.gen:
		return 0, true, errSimReset
	case fate.breaks > 0 && fate.part < 0:
		return 0, true, errSimReset
	case fate.breaks > 0:
		return fate.part, true, errSimReset
	default:
		return 1000, true, nil
	}
}

func (f *simFlow) exchange(batch []*call, want looks) (got said) {
	s, n := f.s, f.s.n
	reqs := make([]*request, len(batch))
	for i, c := range batch {
		reqs[i] = c.req
	}
	// What a conversation sends again by itself is another's to judge.
	ours := slices.DeleteFunc(slices.Clone(batch), func(c *call) bool { return c.state == callNew })
	if f.gen < 0 {
		if err := f.connect(); err != nil {
			for _, c := range batch {
				c.ballot = ballot{err: err}
			}
			return said{whoErr: err, broken: true}
		}
	}
	s.p.w.sends(n.i, ours)
	var as simAnswers
	var who sighting
	var whoErr error
	part, sent, err := f.carry(true, func() {
		if as.each != nil {
			_ = n.run(s.p, reqs) // again
			return
		}
		who, whoErr = n.identity(f)
		as = n.run(s.p, reqs)
	})
	some := len(batch) * part / 1000
	for i, c := range batch {
		c.ballot = ballot{err: err, sent: sent}
		if i < some {
			c.ballot = ballot{val: as.each[i].val, err: as.each[i].err, sent: true}
		}
	}
	s.p.w.hears(n.i, batch)
	if err != nil {
		got = said{whoErr: err, broken: true}
		if some > 0 {
			got.who, got.whoErr = who, whoErr
		}
		return got
	}
	got.who, got.whoErr = who, whoErr
	if want&lookMark != 0 {
		got.mark = as.look.mark
	}
	if want&lookRole != 0 {
		got.role, got.roleOK = as.look, true
	}
	return got
}

// identity is the answer to the full question over a connection, now.
func (n *simNode) identity(f *simFlow) (sighting, error) {
	if _, busy := n.w.faultAt(n.w.t(), -1, n.i, faultBusy); busy {
		return sighting{}, errSimBusy
	}
	s := n.ask()
	s.clientID = f.id
	return s, nil
}

const errSimBusy = memError("BUSY Redis is busy running a script.")

func (f *simFlow) ask() (s sighting, err error) {
	if _, _, broken := f.carry(false, func() { s, err = f.s.n.identity(f) }); broken != nil {
		return sighting{}, broken
	}
	return s, err
}

func (f *simFlow) write(w *markWrite) (m mark, err error) {
	_, _, err = f.carry(false, func() { m = f.s.n.writeMark(w).mark })
	return m, err
}

func (f *simFlow) kill(id int64) (err error) {
	n := f.s.n
	_, _, broken := f.carry(false, func() {
		_, busy := n.w.faultAt(n.w.t(), -1, n.i, faultBusy)
		switch {
		case busy:
			err = errSimBusy
		case n.w.plan.NoKill:
			err = memError("NOPERM this user has no permissions to run the 'client|kill' command")
		default:
			n.mu.Lock()
			n.killed[simConn{f.gen, id}] = true
			n.mu.Unlock()
		}
	})
	if broken != nil {
		return broken
	}
	return err
}

// greet tells the guard who answers before anything else happens.
func (s *simWire) greet() {
	if s.saw == nil {
		return
	}
	for w := s.saw(s.n.ask()); w != nil; {
		w = s.saw(s.n.writeMark(w))
	}
}
