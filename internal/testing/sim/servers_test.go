package sim_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock/internal/conn"
	"github.com/quorumlock/redlock/internal/guard"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/fakenode"
)

// The way from a process to a server: the real conversations, over connections in memory.

// simWire is the way from one process to one server.
type simWire struct {
	*conn.Conversations
	p *simProcess
	n *simNode
}

func newSimWire(p *simProcess, n *simNode) *simWire {
	h := conn.Habits{Keep: 1, Idle: 5 * time.Second}
	switch links := p.w.plan.Links; {
	case p.w.plan.Users && links != nil:
		h = conn.UserHabits(&redis.Options{ConnMaxIdleTime: links.Idle})
	case p.w.plan.Users:
		h = conn.UserHabits(&redis.Options{})
	case links != nil:
		h = conn.OpenHabits(&redis.Options{})
	}
	// A clock of its own, so that its timers and the lane's do not fall on one instant.
	dialer := &simDialer{p: p, n: n}
	dialer.opened()
	return &simWire{Conversations: conn.NewConversations(laneClock{p, int64(n.i + 17)}, dialer, h), p: p, n: n}
}

// simRoom has the goroutine's stack grow at once to what a script needs, or an exchange. Most
// goroutines of a run are young, and growing step by step took an eighth of its time. Nothing uses
// the room, which would have to be cleared.
//
//go:noinline
func simRoom(use bool) byte {
	if !use {
		return 0
	}
	var room [12 << 10]byte
	for i := range room {
		room[i] = byte(i)
	}
	return room[len(room)/2]
}

// Exchange also notes what becomes of SETs, see simSent.
func (s *simWire) Exchange(batch []*lane.Call, patience, bound time.Duration) {
	simRoom(false)
	s.p.examineClosed(s.n.i, batch)
	for _, c := range batch {
		s.p.w.reached("a release is sent again", c.Req.Op == protocol.OpRelease && c.Kind == protocol.Failed)
		s.p.w.reached("a key is put back", c.Req.Op == protocol.OpRepair)
	}
	s.Conversations.Exchange(batch, patience, bound)
	s.p.w.hears(s.n.i, batch)
}

// greet tells the guard who answers before anything else happens.
func (s *simWire) greet() {
	if s.Saw == nil {
		return
	}
	for w := s.Saw(s.n.ask()); w != nil; {
		w = s.Saw(s.n.writeMark(w))
	}
}

var (
	errSimReset   = errors.New("EOF")
	errSimGivenUp = errors.New("use of closed connection")
	errSimTimeout = errors.New("i/o timeout")
	errSimRefused = &net.OpError{Op: "dial", Net: "sim", Err: syscall.ECONNREFUSED}
	errSimDial    = &net.OpError{Op: "dial", Net: "sim", Err: errSimTimeout}
)

// simDialer makes connections.
type simDialer struct {
	p *simProcess
	n *simNode

	denied atomic.Bool // DELIFEQ

	// connect is that of the library, around the Dialer of a user; nil: a connection costs a round trip.
	connect func(context.Context) (net.Conn, error)

	mu    sync.Mutex
	dials uint64
	found bool // the Sentinel that answers
}

func (d *simDialer) Dial(ctx context.Context) (conn.Flow, error) {
	simRoom(false)
	if d.connect != nil {
		return d.dial(ctx)
	}
	f := d.newFlow()
	defer context.AfterFunc(ctx, f.Close)()
	if err := f.connect(); err != nil {
		return nil, err
	}
	return f, nil
}

func (d *simDialer) newFlow() *simFlow {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dials++
	return &simFlow{d: d, n: d.n.led(d.p), salt: d.dials, gone: make(chan struct{}), resetAt: never, native: conn.Native{Denied: &d.denied}}
}

// simFlow is a connection.
type simFlow struct {
	d    *simDialer
	n    *simNode // that the name led to
	salt uint64
	gen  int // of the server
	born int64

	native conn.Native
	timer  *time.Timer // of wait

	gone chan struct{}
	once sync.Once

	mu      sync.Mutex
	said    int64
	resetAt int64 // when the server learns of it; never if it does not
	links   simLinkState
}

func (f *simFlow) Close() {
	f.once.Do(func() {
		close(f.gone)
		f.d.p.w.conns.closed(f)
	})
}

// Reset has the server's system drop what it has not got yet, unless something on the way outlives
// the connection, or nothing gets through.
func (f *simFlow) Reset() {
	p, w := f.d.p, f.d.p.w
	t := w.t()
	_, cut := w.faultAt(t, p.i, f.n.i, faultCut, faultCutOut)
	at := t + w.trip(f.roll('R'))
	if !cut && !w.plan.Outlived && at < f.silentFrom() {
		f.mu.Lock()
		f.resetAt = min(f.resetAt, at)
		f.mu.Unlock()
		w.reached("an old connection is reset", true)
	}
	f.Close()
}

func (f *simFlow) isClosed() bool {
	select {
	case <-f.gone:
		return true
	default:
		return false
	}
}

func (f *simFlow) Heard() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.said
}

// Alive: that a server is gone is seen as often as not.
func (f *simFlow) Alive() bool {
	if f.isClosed() || f.wasTurnedAway() {
		return false
	}
	gen, _ := f.n.generation(f.d.p.w.t())
	return gen == f.gen || f.roll('v')%2 == 0
}

func (f *simFlow) roll(what uint64) uint64 {
	p := f.d.p
	return p.w.mix(what, uint64(p.i), uint64(f.d.n.i), f.salt, uint64(p.w.t()))
}

// wait waits until a time, and fails if the flow was closed before.
func (f *simFlow) wait(until int64) error { return f.waitDoing(0, never, nil, until) }

// waitDoing is wait, and has the server do something in the meantime that came there before, as later would.
// That the same goroutine does it saves another one, whose stack would have to grow.
func (f *simFlow) waitDoing(came, at int64, do func(), until int64) (err error) {
	p, w := f.d.p, f.d.p.w
	roll := f.roll('u')
	begun := w.passed()
	end := begun + int64(w.fine(until-w.t(), roll))
	if do != nil {
		does := begun + int64(w.fine(at-w.t(), f.sender()))
		if err = f.waitFor(does); err == nil {
			f.arrived(came, do)
		} else if !w.isOver() {
			time.AfterFunc(time.Duration(does-w.passed()), func() { f.arrived(came, do) })
		}
	}
	if err == nil {
		err = f.waitFor(end)
	}
	if errors.Is(err, errSimGivenUp) {
		// Whoever closed it goes on at this very moment.
		w.sleep(1+int64(roll%1000), roll)
	}
	p.gate()
	if err == nil && f.isClosed() {
		err = errSimGivenUp
	}
	return err
}

// waitFor waits until a time of the bubble. At the end of the run all flows are closed.
func (f *simFlow) waitFor(end int64) error {
	d := time.Duration(end - f.d.p.w.passed())
	if f.timer == nil {
		f.timer = time.NewTimer(d)
	} else {
		f.timer.Reset(d)
	}
	select {
	case <-f.timer.C:
		return nil
	case <-f.gone:
		f.timer.Stop()
		return errSimGivenUp
	}
}

func (f *simFlow) connect() error {
	p, n, w := f.d.p, f.n, f.d.p.w
	t := w.t()
	roll := f.roll('c')
	if _, cut := w.faultAt(t, p.i, n.i, faultCut, faultCutOut, faultCutBack); cut {
		if err := f.wait(t + int64(w.plan.NodeTimeout)); err != nil {
			return &net.OpError{Op: "dial", Net: "sim", Err: err}
		}
		return errSimDial
	}
	down := func() bool {
		_, down := w.faultAt(w.t(), -1, n.i, faultCrash, faultStale, faultForget, faultSwap, faultPromote)
		return down
	}
	if err := f.wait(t + 2*w.trip(roll)); err != nil { // the system answers, though the server may hang
		return &net.OpError{Op: "dial", Net: "sim", Err: err}
	}
	if down() {
		return errSimRefused
	}
	f.born = w.t()
	f.gen, _ = n.generation(f.born)
	return nil
}

// silentFrom is when a connection was forgotten by something on its way; never if it was not.
func (f *simFlow) silentFrom() int64 {
	from := never
	faults := f.d.p.w.plan.Faults
	for i := range faults {
		if fault := &faults[i]; fault.Kind == faultMute && fault.Node == f.n.i && fault.Proc == f.d.p.i && int64(fault.At) > f.born {
			from = min(from, int64(fault.At))
		}
	}
	if f.wasForgotten() {
		return 0
	}
	return from
}

// later has the server do something at a time when it comes there, if it is the same process then and the
// connection was not reset by then.
func (f *simFlow) later(at int64, do func()) {
	w := f.d.p.w
	w.after(at-w.t(), f.sender(), func() {
		simRoom(false)
		f.arrived(at, do)
	})
}

// sender keeps apart what arrives over different connections.
func (f *simFlow) sender() uint64 { return f.d.p.w.mix(uint64(f.d.p.i), uint64(f.n.i), f.salt) }

// arrived is the moment at which the server does what came there before: a server that hangs does later
// also what a connection sent that was reset meanwhile.
func (f *simFlow) arrived(came int64, do func()) {
	f.mu.Lock()
	reset := came >= f.resetAt
	f.mu.Unlock()
	if now, _ := f.n.generation(f.d.p.w.t()); now == f.gen && !reset {
		do()
	}
}

// simFates are the fates of a message, of which it has one at most.
type simFates struct {
	there, back int64
	lost        bool
	lands       int64 // after so long, while the sender is told of a broken connection after breaks, or nothing if that is negative
	breaks      int64
	cut         bool // the connection breaks on the way
	reset       bool // and behind the answer to some
	twice       int64
}

// draw draws the fates of a batch, or of a question, to which nothing happens.
func (f *simFlow) draw(roll uint64, batch bool) simFates {
	w := f.d.p.w
	t := w.t()
	x := simFates{there: w.trip(roll), back: w.trip(mix(roll, 'b'))}
	within := func(salt uint64, d time.Duration) int64 { return int64(mix(roll, salt) % uint64(d+1)) }
	fate := func(permille int, salt uint64) bool {
		return batch && t < int64(w.plan.Until) && int(mix(roll, salt)%1000) < permille
	}
	slowFor := cmp.Or(w.plan.SlowFor, w.plan.NodeTimeout*3/2)
	if fate(w.plan.Slow, 1) {
		x.there += within(2, slowFor)
	}
	if fate(w.plan.Slow, 3) {
		x.back += within(4, slowFor)
	}
	switch {
	case fate(w.plan.Lost, 5):
		x.lost = true
	case fate(w.plan.Late, 6):
		x.lands, x.breaks = x.there+within(7, 2*w.plan.TTL), -1
		if !fate(500, 8) {
			x.breaks = within(9, w.plan.NodeTimeout)
		}
	case fate(w.plan.Torn, 15):
		x.lands, x.breaks = x.there+within(16, max(w.plan.TornFor, w.plan.NodeTimeout/2)), x.there/2
	default:
		x.reset = fate(w.plan.Reset, 10)
		x.cut = x.reset && fate(300, 11)
	}
	if fate(w.plan.Twice, 12) {
		x.twice = within(13, 2*w.plan.TTL)
	}
	return x
}

// send sends something that the server does, and waits for its answers; some is of how
// many parts it can be read.
func (f *simFlow) send(roll uint64, batch bool, parts int, do func()) (some int, err error) {
	p, n, w := f.d.p, f.n, f.d.p.w
	t := w.t()
	if gen, _ := n.generation(t); gen != f.gen || f.d.n.led(p) != n {
		return 0, cmp.Or(f.wait(t+int64(roll%5000)), errSimReset)
	}
	x := f.draw(roll, batch)
	f.used(t)
	silent := f.silentFrom()
	_, cutOut := w.faultAt(t, p.i, n.i, faultCut, faultCutOut)
	if cutOut || x.lost || t+x.there >= silent {
		return 0, cmp.Or(f.wait(t+never), errSimTimeout)
	}
	if x.lands > 0 {
		f.later(t+x.lands, do)
		if x.breaks < 0 {
			return 0, cmp.Or(f.wait(t+never), errSimTimeout)
		}
		return 0, cmp.Or(f.wait(t+x.breaks), errSimReset)
	}
	if x.cut {
		return 0, cmp.Or(f.wait(t+x.there), errSimReset)
	}
	at := n.serves(t + x.there)
	if died, _ := n.generation(at); died != f.gen {
		return 0, cmp.Or(f.wait(at+x.back), errSimReset)
	}
	if x.twice > 0 {
		f.later(at+x.twice, do)
	}
	end := at + x.back
	_, cutBack := w.faultAt(at, p.i, n.i, faultCut, faultCutBack)
	died, _ := n.generation(end)
	switch {
	case cutBack || end >= silent:
		return 0, cmp.Or(f.waitDoing(t+x.there, at, do, t+never), errSimTimeout)
	case died != f.gen:
		return 0, cmp.Or(f.waitDoing(t+x.there, at, do, end), errSimReset)
	}
	if err := f.waitDoing(t+x.there, at, do, end); err != nil {
		return 0, err
	}
	f.used(w.t())
	f.mu.Lock()
	f.said++
	f.mu.Unlock()
	if x.reset {
		return int(mix(roll, 14) % uint64(parts+1)), errSimReset
	}
	return parts, nil
}

func (f *simFlow) Exchange(batch []*lane.Call, want conn.Looks) (got conn.Said) {
	reqs := make([]*protocol.Request, len(batch))
	for i, c := range batch {
		if reqs[i] = c.Req; f.native.May() != protocol.NoNative && c.Req.MayBeNative() {
			r := *c.Req
			r.Native = f.native.May()
			reqs[i] = &r
		}
		if b := c.Req.Bundle(); b != nil { // whose requests are others by the time when the server reads it
			reqs[i] = (&protocol.Bundle{Of: slices.Clone(b.Of)}).Request()
			reqs[i].Whole = c.Req.Whole
		}
	}
	f.d.p.w.sends(f.d.p, f.d.n.i, batch)
	f.d.p.w.conns.wrote(f.d.p, f.d.n, batch)
	f.checkMoved()
	if f.hangsUp(batch) {
		return conn.Said{Broken: true}
	}
	var answers atomic.Pointer[simAnswers]
	some, err := f.send(f.roll('s'), true, len(reqs), func() {
		a := new(simAnswers)
		a.each, a.look = f.n.run(f.d.p, reqs, want != 0)
		answers.CompareAndSwap(nil, a)
	})
	as := answers.Load()
	if as == nil {
		some = 0
	}
	for i, c := range batch {
		if c.Answer = (protocol.Answer{Said: err, Sent: true}); i < some {
			c.Answer = protocol.Answer{Said: protocol.Said(as.each[i].val, as.each[i].err), Sent: true, Native: reqs[i].Native != protocol.NoNative}
			f.native.Learn(&c.Answer)
		} else if err == nil {
			c.Answer.Said = errSimReset // at the end of the run
		}
	}
	got.Broken = some < len(batch)
	if as != nil && as.look != nil {
		got.Mark = as.look.Mark
		if !got.Broken && want&conn.LookServer != 0 {
			s := *as.look
			s.Mark, got.Server = protocol.Mark{}, &s
		}
	}
	return got
}

// identity is what the server says of itself over this connection, now.
func (f *simFlow) identity() (protocol.ServerReport, error) {
	n := f.n
	if err := f.turnedAway(); err != nil {
		return protocol.ServerReport{}, err
	}
	if err := n.says(n.w.t()); err != nil && !doesNevertheless(err, nil) {
		return protocol.ServerReport{}, err
	}
	if n.w.plan.RestartGuard < 0 { // and nothing is asked
		return protocol.ServerReport{}, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.sighting(n.w.t())
	if s.Err == nil && s.Role != "slave" {
		if s.Err = s.Mark.Err; s.Err == nil {
			s.Err = n.trialFails(n.w.t())
		}
	}
	return s, nil
}

// trialFails is what the server says to the trial of a lock's commands; the caller holds mu.
func (n *simNode) trialFails(t int64) error {
	err := n.denies(writesMark, t)
	if says := n.saysTo("EVALSHA", t); says != nil {
		err = says
	}
	if err == nil {
		return nil
	}
	return protocol.TrialFails("EVALSHA", protocol.TrialKey, nil, err)
}

// answerTo sends a question to which nothing happens but to the network. What the server does
// may be done after the asker has given up.
func answerTo[T any](f *simFlow, what uint64, do func() T) (answer T, err error) {
	done := make(chan T, 1)
	_, err = f.send(f.roll(what), false, 1, func() { done <- do() })
	if err != nil {
		return answer, err
	}
	select {
	case answer = <-done:
		return answer, nil
	default:
		return answer, errSimReset
	}
}

func (f *simFlow) Ask() (protocol.ServerReport, error) {
	type told struct {
		s   protocol.ServerReport
		err error
	}
	t, err := answerTo(f, 'q', func() (t told) { t.s, t.err = f.identity(); return t })
	if err != nil {
		return protocol.ServerReport{}, err
	}
	f.native.Has = t.s.Native
	return t.s, t.err
}

func (f *simFlow) Write(m *protocol.MarkWrite) (protocol.Mark, error) {
	s, err := answerTo(f, 'm', func() protocol.ServerReport { return f.n.writeMark(m) })
	return s.Mark, err
}

func (s *simWire) Listen(ctx context.Context, channel string, tell lane.Subscriber) error {
	p, n, w := s.p, s.n.led(s.p), s.p.w
	t := w.t()
	roll := w.mix('l', uint64(p.i), uint64(n.i), uint64(t))
	_, cut := w.faultAt(t, p.i, n.i, faultCut, faultCutOut, faultCutBack)
	_, down := w.faultAt(t, -1, n.i, faultCrash, faultStale, faultForget, faultSwap, faultPromote)
	sub := &simSub{proc: p, channel: channel, heard: tell.Heard, broken: make(chan struct{})}
	w.sleep(w.available(n, t+3*w.trip(roll))-t, roll)
	p.gate()
	_, unheard := w.faultAt(w.t(), -1, n.i, faultUnheard)
	if cut || down || unheard || ctx.Err() != nil {
		return errSimTimeout
	}
	n.mu.Lock()
	n.subs = append(n.subs, sub)
	n.mu.Unlock()
	w.sleep(w.trip(mix(roll, 'b')), roll)
	p.gate()
	if w.plan.NoPublish {
		tell.Denied(fakenode.Error("NOPERM this user has no permissions to run the 'publish' command"))
	}
	n.listens(sub, true)
	tell.Confirmed()
	var err error
	select {
	case <-ctx.Done():
		err = ctx.Err()
	case <-sub.broken:
		err = errSimReset
	case <-w.over:
		err = errSimReset
	}
	n.mu.Lock()
	sub.gone = true
	n.mu.Unlock()
	n.listens(sub, false)
	return err
}

// How simulated servers lose what they know, and what they tell of themselves.

// losesAt is when a fault takes keys of a node away; 0: it does not.
func (f *simFault) losesAt() int64 {
	switch f.Kind {
	case faultForget, faultSwap, faultPromote, faultFlush, faultStale:
		return max(int64(f.At), 1)
	case faultResync:
		return max(int64(f.At+f.For), 1)
	default:
		return 0
	}
}

// drawsAt is when a fault has a server draw a replication id, unless it is a loss that draws none; 0: it does
// not.
func (f *simFault) drawsAt() int64 {
	if f.Kind == faultRedraw {
		return max(int64(f.At), 1)
	}
	return f.losesAt()
}

// drawLosses adds losses that are no restarts to some plans. It draws from a source of its
// own, so that what a seed had before it still has.
func (p *simPlan) drawLosses() {
	r := rand.New(rand.NewPCG(p.Seed, 0x105e))
	in := func(lo, hi time.Duration) time.Duration { return lo + time.Duration(r.Int64N(int64(hi-lo)+1)) }
	back := slices.ContainsFunc(p.Faults, func(f simFault) bool { return f.Kind == faultBack }) // then clocks keep the order of fences
	if p.Strict || p.RestartGuard < 0 || len(p.Nodes) == 1 || back || r.IntN(2) > 0 {
		return
	}
	kinds := []string{faultFlush, faultPromote, faultResync}
	for range 1 + r.IntN(4) {
		f := simFault{Kind: kinds[r.IntN(3)], Node: r.IntN(len(p.Nodes)), At: in(0, p.Until), For: in(0, p.TTL/4)}
		f.For += noticed[f.Kind]
		p.Faults = append(p.Faults, f)
	}
	if r.IntN(2) > 0 {
		return
	}
	// Many at a time, or whoever holds the lock still has a majority.
	at, kind := in(0, p.Until), kinds[r.IntN(3)]
	for i := range p.Nodes {
		if r.IntN(4) > 0 {
			p.Faults = append(p.Faults, simFault{Kind: kind, Node: i, At: at + in(0, p.TTL/4), For: in(0, p.TTL/8) + noticed[kind]})
		}
	}
}

// drawRedraws has servers draw replication ids in some plans, where nothing is lost. It has randomness of its
// own, so that the other plans are what they were.
func (p *simPlan) drawRedraws() {
	r := rand.New(rand.NewPCG(p.Seed, 0x2ed))
	if p.Strict || r.IntN(6) > 0 {
		return
	}
	for range 1 + r.IntN(6) {
		f := simFault{Kind: faultRedraw, Node: r.IntN(len(p.Nodes)), At: time.Duration(r.Int64N(int64(p.Until)))}
		p.Faults = append(p.Faults, f)
		if r.IntN(2) == 0 { // who sees the first of two ids has to ask anew
			f.Kind, f.Proc, f.At = faultMute, r.IntN(len(p.Processes)), f.At+p.TTL/8
			p.Faults = append(p.Faults, f)
		}
	}
}

// noticed is how long a loss must take that is noticed by the role alone, which is not
// asked with each batch: docs/safety.md promises once a second, whatever the code says.
var noticed = map[string]time.Duration{faultResync: time.Second * 102 / 100}

// generation counts the server's starts before t.
func (n *simNode) generation(t int64) (g int, since int64) {
	if !n.w.plan.Young {
		since = -int64(time.Hour)
	}
	for i := range n.w.plan.Faults {
		f := &n.w.plan.Faults[i]
		if f.Node != n.i || int64(f.At) > t {
			continue
		}
		switch f.Kind {
		case faultCrash, faultForget, faultStale:
			g++
			since = max(since, int64(f.At+f.For))
		case faultSwap, faultPromote:
			g++
		}
	}
	return g, since
}

// replication counts the times that the server drew a replication id before t.
func (n *simNode) replication(t int64) (count int, former bool) {
	for i := range n.w.plan.Faults {
		f := &n.w.plan.Faults[i]
		if f.Node != n.i || f.drawsAt() == 0 || f.drawsAt() > t {
			continue
		}
		if f.Kind != faultFlush && f.Kind != faultStale { // whose mark is bound to the id that it has
			count++
			former = f.Kind == faultPromote || f.Kind == faultResync
		}
	}
	return count, former
}

// puts counts how often the process that runs at t was told to follow, or to lead again.
func (n *simNode) puts(t int64) (count int64) {
	begun := int64(math.MinInt64)
	for i := range n.w.plan.Faults {
		switch f := &n.w.plan.Faults[i]; f.Kind {
		case faultCrash, faultForget, faultStale, faultSwap, faultPromote:
			if f.Node == n.i && int64(f.At) <= t {
				begun = max(begun, int64(f.At))
			}
		}
	}
	for i := range n.w.plan.Faults {
		f := &n.w.plan.Faults[i]
		for _, at := range []int64{int64(f.At), int64(f.At + f.For)} {
			if f.Kind == faultResync && f.Node == n.i && begun < at && at <= t {
				count++
			}
		}
	}
	return count
}

// simName is what a server calls its nth run, or replication.
type simName struct {
	what string
	nth  int
}

// called makes a name, once. The caller holds mu.
func (n *simNode) called(what string, nth int) string {
	name, known := n.calls[simName{what, nth}]
	if !known {
		name = fmt.Sprintf("%s-%d-of-node-%d", what, nth, n.i)
		n.calls[simName{what, nth}] = name
	}
	return name
}

// report is what the server that runs at t, which is now unless nobody looks at the mark,
// tells of itself. The caller holds mu.
func (n *simNode) sighting(t int64) protocol.ServerReport {
	gen, since := n.generation(t)
	replication, former := n.replication(t)
	s := protocol.ServerReport{
		Asked: true, RunID: n.called("run", gen), Role: "master", FormerID: "0",
		ReplID: n.called("replication", replication),
		Start:  n.hand.at(since) / int64(time.Second), Puts: n.puts(t),
	}
	if former {
		s.FormerID = "another"
	}
	s.Time = time.Duration(n.store.Now())
	for _, question := range []string{"TIME", "INFO server", "INFO replication", "INFO commandstats"} {
		if err := n.saysTo(question, t); err != nil {
			return protocol.ServerReport{Err: protocol.Unanswered(question, err)}
		}
	}
	if n.w.plan.Native && n.i%3 > 0 {
		s.Native = protocol.DelIfEq
	}
	if _, follows := n.w.faultAt(t, -1, n.i, faultResync); follows {
		s.Role, s.ReplID = "slave", "another"
	}
	text, ok, err := n.store.Text(protocol.MarkKey)
	switch said := n.says(t); {
	case said != nil && !doesNevertheless(said, readsMark):
		s.Mark = protocol.MarkOfError(said)
	case n.saysTo("GET", t) != nil:
		s.Mark = protocol.MarkOfError(n.saysTo("GET", t))
	case err != nil:
		s.Mark = protocol.MarkOfError(err)
	default:
		s.Mark = protocol.ReadMark(text, ok, time.Duration(n.store.Now()))
	}
	return s
}

const (
	errSimLoading  = fakenode.Error("LOADING Redis is loading the dataset in memory")
	errSimReadOnly = fakenode.Error("READONLY You can't write against a read only replica.")
)

// What is known of a mark, and what becomes of it, is no request of a lane.
var (
	readsMark  = &protocol.Request{Op: protocol.OpInspect}
	writesMark = &protocol.Request{Op: protocol.OpAcquire}
)

// denies is what the server answers to a request at t; nil: it does as it is asked.
func (n *simNode) denies(r *protocol.Request, t int64) error {
	if err := n.says(t); err != nil && !doesNevertheless(err, r) {
		return err
	}
	if _, follows := n.w.faultAt(t, -1, n.i, faultResync); follows {
		n.w.reached("a replica is asked", true)
		return errSimReadOnly
	}
	return nil
}

// ask is the answer to the full question, now.
func (n *simNode) ask() protocol.ServerReport {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sighting(n.w.t())
}

// writeMark does what a guard wants, now, and tells what is there then.
func (n *simNode) writeMark(w *protocol.MarkWrite) protocol.ServerReport {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.sighting(n.w.t())
	if err := n.denies(writesMark, n.w.t()); err != nil {
		s.Mark = protocol.MarkOfError(err)
		return s
	}
	argv := make([]string, 0, 4)
	for _, a := range w.Args() {
		argv = append(argv, fakenode.Argument(a))
	}
	s.Mark = protocol.ReadWritten(n.store.Mark(protocol.MarkKey, argv, &fakenode.Op{}))
	if n.marked == 0 {
		n.marked = n.w.t()
	}
	if n.saysAll == 0 && s.Mark.All > 0 {
		n.saysAll = n.w.t()
	}
	if w.IsRedated() {
		n.w.reached("a mark is given the present date", true)
	}
	return s
}

// barredUntil is until when too few nodes may vote, where a process died, or was cut off, while it wrote into the
// marks that all nodes were new. The others cannot go on: a node whose mark does not say so may have lost one that
// did, and a lock. So all but those that were told vote once their marks are as old as the guard's period.
func (w *simWorld) barredUntil(key string) int64 {
	if w.plan.RestartGuard < 0 {
		return 0
	}
	period := max(w.plan.TTL, w.plan.RestartGuard, guard.FirstUse)
	if w.plan.Fenced[fakenode.Number(key[1:])] {
		period = max(period, guard.FencedGuard)
	}
	told, votes := int64(never), []int64(nil)
	for _, n := range w.nodes {
		at := n.marked + int64(period*102/100)
		if n.saysAll > 0 {
			told, at = min(told, n.saysAll), min(at, n.saysAll)
		}
		votes = append(votes, at)
	}
	timeout := int64(w.plan.NodeTimeout)
	if !slices.ContainsFunc(w.plan.Faults, func(f simFault) bool {
		return (f.Kind == faultKill || f.Kind == faultCut) && told > int64(f.At)-timeout && told < int64(f.At)+timeout
	}) {
		return 0
	}
	slices.Sort(votes)
	return votes[len(votes)/2]
}

// drawShortGuard sets some guards below the TTL. It has randomness of its own, so that other plans are what
// they were.
func (p *simPlan) drawShortGuard() {
	r := rand.New(rand.NewPCG(p.Seed, 0x5604))
	if p.RestartGuard > 0 && r.IntN(2) == 0 {
		p.RestartGuard = p.TTL/8 + time.Duration(r.Int64N(int64(p.TTL/4)))
	}
}

// lose is the moment of a loss.
func (n *simNode) lose(kind string) {
	if kind == faultForget || kind == faultSwap || kind == faultPromote {
		n.disconnect()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	kept := n.store.Keys[protocol.MarkKey]
	clear(n.store.Keys)
	for _, what := range n.others() {
		n.lost(what)
	}
	if kept != nil && (kind == faultPromote || kind == faultResync) {
		n.store.Keys[protocol.MarkKey] = kept
	}
	t := n.w.t()
	for _, hs := range n.holds {
		for _, h := range hs {
			if h.expire > 0 && h.gone() > t { // it counts as held for as long as it would have been
				h.forgotten = t
			}
			h.expire = 0
		}
	}
}

// disconnect is what a process that dies leaves behind.
func (n *simNode) disconnect() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.store.Scripts)
	for _, s := range n.subs {
		s.breakOff()
	}
	n.subs = nil
}

// drawFlows draws what happens to connections, from a source of its own.
func (p *simPlan) drawFlows() {
	r := rand.New(rand.NewPCG(p.Seed, 0xf10))
	in := func(lo, hi time.Duration) time.Duration { return lo + time.Duration(r.Int64N(int64(hi-lo)+1)) }
	p.Users, p.Native = r.IntN(3) == 0, mix(p.Seed, 'd')%3 == 0
	p.Outlived = !p.Strict && r.IntN(6) == 0
	if p.Torn > 0 && r.IntN(2) == 0 && !p.Strict {
		p.TornFor = in(0, 2*p.TTL)
	}
	if r.IntN(3) > 0 {
		return
	}
	for range 1 + r.IntN(3) {
		f := simFault{Kind: faultMute, At: in(0, p.Until), Proc: r.IntN(len(p.Processes))}
		each := r.IntN(2) == 0
		for i := range p.Nodes {
			if f.Node = i; each || r.IntN(3) == 0 {
				p.Faults = append(p.Faults, f)
			}
		}
	}
}

// Two names of one server.

// drawTwins has names lead to other nodes' servers for a while. It has randomness of its own, so that
// plans without it are what they were. Without a guard nobody looks at who answers.
func (p *simPlan) drawTwins() {
	r := rand.New(rand.NewPCG(p.Seed, 0x7417))
	nodes := len(p.Nodes)
	if r.IntN(12) > 0 || p.Strict || p.RestartGuard < 0 || nodes < 2 {
		return
	}
	f := simFault{Kind: faultTwin}
	each := r.IntN(2) == 0
	for range 1 + r.IntN(nodes) {
		f.Node = r.IntN(nodes)
		f.To = (f.Node + 1 + r.IntN(nodes-1)) % nodes
		f.At = time.Duration(r.Int64N(int64(p.Until))) * time.Duration(r.IntN(4)) / 3
		f.For = time.Duration(r.Int64N(int64(p.Until)))
		for f.Proc = range p.Processes {
			if each || r.IntN(2) == 0 {
				p.Faults = append(p.Faults, f)
			}
		}
	}
}

// led is the node whose server answers a process by this node's name now.
func (n *simNode) led(p *simProcess) *simNode {
	t := n.w.t()
	for i := range n.w.plan.Faults {
		if f := &n.w.plan.Faults[i]; f.Kind == faultTwin && f.Node == n.i && f.Proc == p.i && t >= int64(f.At) && t < int64(f.At+f.For) {
			return n.w.nodes[f.To]
		}
	}
	return n
}
