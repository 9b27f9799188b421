package redlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// Extend makes the lease last for ttl from now. It returns when a majority that had the lock confirmed it. ttl
// follows the rules of Options.TTL, and is at most the greater of the lock's own TTL and Options.RestartGuard, unless
// the guard is off.
//
// On success Until is ttl from the call's start, less drift, or what it was if that is later. Nodes that lost the key
// are given it again.
//
// The lock is lost if too many nodes say that it is not ours (ErrNotHeld and ErrLost), or if Until has passed
// (ErrExpired and ErrLost). After any other failure it is held until Until:
// ErrNoQuorum, ErrClosed, ErrInvalid, or ctx's error. After Release and Detach it fails with ErrReleased.
func (l *Lock) Extend(ctx context.Context, ttl time.Duration) error {
	if err := invalid("extend of "+quoteKey(l.key), l.brokenLease(ttl)); err != nil {
		return err
	}
	return l.extend(ctx, ttl)
}

// brokenLease is what is wrong with making the lease last for ttl.
func (l *Lock) brokenLease(ttl time.Duration) []string {
	broken := brokenTTL("ttl", ttl, l.opts)
	if beyond := l.beyondGuard(ttl); beyond != "" && len(broken) == 0 {
		broken = []string{beyond}
	}
	return broken
}

// beyondGuard is not empty where a node that forgets a lease of ttl may vote before it is over.
func (l *Lock) beyondGuard(ttl time.Duration) string {
	most := l.opts.longestLease(l.terms.TTL)
	if ttl <= most {
		return ""
	}
	return fmt.Sprintf("ttl is %v: must be at most %v, for which a node that restarted is kept from granting: "+
		"the lock's TTL is %v and RestartGuard is %s; set WithTTL or, in all clients, RestartGuard to at least %v",
		ttl, most, l.terms.TTL, guardText(l.opts.RestartGuard), ttl)
}

func (l *Lock) extend(ctx context.Context, ttl time.Duration) error {
	start := l.clock.Now()
	r := new(round)
	lost, err := l.tryExtend(ctx, r, start, ttl, func() {})
	l.tellExtended(ctx, r, start, ttl, false, lost, err)
	return err
}

// tellExtended calls the hooks. lost: the lock was lost just now, by err.
func (l *Lock) tellExtended(ctx context.Context, r *round, start tick.Instant, ttl time.Duration, renewal, lost bool, err error) {
	if lost {
		l.tellLost(err)
	}
	extended := l.opts.Hooks.Extended
	if extended == nil {
		return
	}
	if renewal {
		ctx = context.WithoutCancel(l.acquireCtx)
	}
	extended(ctx, ExtendInfo{
		Key: l.key, Mode: l.terms.mode(), Token: l.Token(), TTL: ttl, Renewal: renewal,
		Start: start.Time, Elapsed: l.clock.Now().Since(start), Until: l.Until(),
		Outcomes: l.outcomes(r), Err: err,
	})
}

// tryExtend leaves r as it is where no node is asked. It calls no hook. lost: the lock was lost
// just now, by err. answered is called once, when no node's answer is waited for any more.
func (l *Lock) tryExtend(ctx context.Context, r *round, start tick.Instant, ttl time.Duration, answered func()) (lost bool, err error) {
	if err := l.usable(ctx, protocol.OpExtend); err != nil {
		return false, err
	}
	l.mu.Lock()
	switch {
	case l.over != nil:
		defer l.mu.Unlock()
		return false, fmt.Errorf("redlock: extend %s: %w", quoteKey(l.key), within{l.over})
	case start.Reached(l.until):
		defer l.mu.Unlock()
		why := l.expired()
		l.finish(start, why)
		return true, why
	}
	l.longest = max(l.longest, ttl)
	r.init(start, make([]seat, len(l.nodes)))
	for i := range r.seats {
		r.seats[i].call.Set = l.lastSet(i)
	}
	l.mu.Unlock()

	terms := l.terms
	terms.TTL, terms.NodeTimeout = ttl, l.opts.nodeTimeout(ttl)
	req := protocol.ExtendRequest(&terms.Terms, l.name, l.value)
	if l.terms.shared {
		req = protocol.SharedExtendRequest(&terms.Terms, l.name, l.value, l.shareArgs(int64(l.permit.Load())))
	}
	mend := &repairs{lock: l, terms: &terms, done: answered}
	r.observer = mend
	for i := range r.seats {
		r.address(i, req)
	}
	v, cut := l.await(ctx, l.sendAddressed(r))
	now := l.clock.Now()
	switch {
	case errors.Is(cut, ErrClosed):
		return false, l.failed(r, protocol.OpExtend, ErrClosed)
	case cut != nil:
		return false, l.failed(r, protocol.OpExtend, withContextErr(ctx)...)
	}
	if lost, err = l.extended(r, v, start, now, ttl); err == nil {
		mend.begin()
	}
	return lost, err
}

// extended is what has come of an extend that was decided.
func (l *Lock) extended(r *round, v verdict, start, now tick.Instant, ttl time.Duration) (lost bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.over != nil:
		return false, fmt.Errorf("redlock: extend %s: %w", quoteKey(l.key), within{l.over})
	case now.Reached(l.until):
		// However many keys are left: in between others may have had the lock.
		why := l.failed(r, protocol.OpExtend, ErrLost, ErrExpired)
		l.finish(now, why)
		return true, why
	case v != verdictGranted && start.Mono < l.confirmed: // mutant: overtaken-extend
		return false, l.failed(r, protocol.OpExtend, ErrNoQuorum) // a later one knows better
	case v == verdictHeld:
		why := l.failed(r, protocol.OpExtend, ErrNotHeld, ErrLost)
		l.finish(now, why)
		return true, why
	case v != verdictGranted:
		l.notExtended = l.failed(r, protocol.OpExtend, ErrNoQuorum)
		return false, l.notExtended
	}
	l.notExtended, l.confirmed = nil, max(l.confirmed, start.Mono)
	if until := validUntil(start, ttl, l.opts.DriftFactor); now.Until(until) > now.Until(l.until) {
		// Later as seen from now: the wall clock may have been set back meanwhile.
		l.lasts(until, now)
		if l.ctx != nil {
			l.ctx.timer.Reset(now.Until(l.contextEnd()))
		}
	}
	return false, nil
}

// repairs puts the key back on nodes that lost it, once an extend has succeeded
// without them. It is apart from the extend, because a key that was gone was free for
// others meanwhile: it must not count.
type repairs struct {
	lock  *Lock
	terms *terms
	done  func() // no node's answer is waited for any more

	mu      sync.Mutex
	begun   bool
	missing []int
}

// observe sees each node's answer to the extend, also those after its decision.
func (p *repairs) observe(i int, b protocol.Answer) {
	if b.Kind != protocol.Refused || b.Holder() != "" || b.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.begun {
		p.lock.restore(p.terms, i)
	} else {
		p.missing = append(p.missing, i)
	}
}

func (p *repairs) answered() { p.done() }

func (p *repairs) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun = true
	for _, i := range p.missing {
		p.lock.restore(p.terms, i)
	}
}

// restore sets the key on a node that lost it. It must not begin after Until, when the key
// would have no holder: the node may answer so late, and the process need not have noticed yet
// that the lock is over.
func (l *Lock) restore(t *terms, i int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	if l.over != nil || now.Reached(l.until) {
		return
	}
	if l.repairs == nil {
		l.repairs = make([]*lane.Call, len(l.nodes))
	}
	if left := now.Until(l.until); left > t.TTL {
		longer := *t // an extend does not shorten what an earlier lease promised
		longer.TTL = left + tick.Allowance(left, l.opts.DriftFactor)
		t = &longer
	}
	req := l.repairRequest(t)
	deadline := min(now.Mono+int64(req.Timeout), l.until.Mono)
	before, c := l.lastSet(i), &lane.Call{Req: &req, Index: int16(i), Deadline: deadline}
	if l.lane(i).Replace(before, c, now.Mono) {
		l.repairs[i] = c
	}
}

// repairRequest sets what the acquire set; the caller holds mu.
func (l *Lock) repairRequest(t *terms) protocol.Request {
	switch {
	case l.terms.shared:
		return *protocol.SharedClaimRequest(protocol.OpRepair, &t.Terms, l.name, l.value, l.shareArgs(int64(l.permit.Load())), nil)
	case t.fencing:
		return protocol.FenceRepairRequest(&t.Terms, l.name, l.value, l.fenceArgs(l.fence))
	default:
		return protocol.SetRequest(protocol.OpRepair, &t.Terms, l.name, l.value)
	}
}

// lastSet is the last SET that may have put the value on a node; the caller holds mu.
func (l *Lock) lastSet(i int) *lane.Call {
	if l.repairs != nil && l.repairs[i] != nil {
		return l.repairs[i]
	}
	return &l.round.seats[i].call
}

// Renew has the lock renewed from now on, as WithRenewal does from the grant: every third of its TTL,
// until it is released or lost, WithMaxHold ends it, or the Redlock is closed. It does no I/O by
// itself, and nothing for a lock that is renewed or over already. To hold the lock for longer at
// once, call Extend.
func (l *Lock) Renew() {
	now := l.clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.renews || l.over != nil || l.life.closed() {
		return
	}
	l.renews = true
	third := l.terms.TTL / 3
	l.renewer.Schedule(&l.renewal, now, l.until, min(third, max(0, now.Until(l.until)-2*third)), l.terms.TTL)
}

// renewed is a lock as the renewer sees it.
type renewed Lock

func (l *renewed) Renew()                     { (*Lock)(l).renewNow() }
func (l *renewed) CheckEnd() error            { return (*Lock)(l).checkEnd() }
func (l *renewed) TellLost(why error)         { (*Lock)(l).tellLost(why) }
func (l *renewed) NodeTimeout() time.Duration { return l.terms.NodeTimeout }

// renewNow extends the lock for the renewer, which calls it on a goroutine of its own.
func (l *Lock) renewNow() {
	// Locks fall due together, on a grid: a simulation puts them in order here.
	l.clock.Yield(l.grantedAt.Mono)
	ttl := l.terms.TTL
	now := l.clock.Now()
	if most := l.terms.maxHold; most > 0 && now.Reached(l.grantedAt.Add(most)) {
		l.renewer.Fewer(&l.renewal, 1, 1)
		return
	}
	start, r := now, new(round)
	lost, err := l.tryExtend(context.Background(), r, start, ttl, func() { l.renewer.Fewer(&l.renewal, 0, 1) })
	// Neither the next one nor those of other locks are put off by a hook that takes its time.
	l.renewLater(err)
	if r.seats == nil { // no node was asked
		l.renewer.Fewer(&l.renewal, 0, 1)
	}
	l.renewer.Fewer(&l.renewal, 1, 0)
	l.tellExtended(context.Background(), r, start, ttl, true, lost, err)
}

// renewLater has the renewer extend the lock again, soon after a renewal that failed.
func (l *Lock) renewLater(err error) {
	now := l.clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over != nil || l.life.closed() {
		return
	}
	if next := l.terms.TTL / 3; err == nil {
		l.renewer.Schedule(&l.renewal, now, l.until, next, l.terms.TTL)
	} else {
		l.renewer.Schedule(&l.renewal, now, l.until, next/5, l.terms.TTL)
	}
}
