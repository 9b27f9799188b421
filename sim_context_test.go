package redlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/quorumlock/redlock/internal/tick"
)

// Contexts: those of locks and of Do's functions are looked at as claims are, and those of callers
// end in the middle of extends and of functions.

// simContextLate is how much later than a lock its context may end: an end by time is a timer's, and
// where the clocks have moved apart it is found out four times a second.
const simContextLate = int64(300 * time.Millisecond)

// drawContexts has the clients of some plans look at contexts, and use WithMaxHold. It has
// randomness of its own, so that the other plans are what they were.
func (p *simPlan) drawContexts() {
	p.Contexts = rand.New(rand.NewPCG(p.Seed, 0xc0c)).IntN(3) == 0
}

// maxHold is the option that this use has, if any.
func (c *simClient) maxHold(op int) (opts []LockOption) {
	if c.w.plan.Contexts && c.roll(op, 240)%4 == 0 {
		opts = append(opts, WithMaxHold(minTTL+c.within(op, 241, 2*c.w.plan.TTL)))
	}
	return opts
}

// simContext is a context that is to end with a lock.
type simContext struct {
	context.Context
	caller context.Context // with which it ends, too; nil: there is none
	lost   bool            // it says that the lock is lost; guarded by simGrant.mu
}

// watch looks at a context of a lock from now on.
func (w *simWorld) watch(g *simGrant, ctx, caller context.Context) {
	s := &simContext{Context: ctx, caller: caller}
	g.contexts = append(g.contexts, s)
	context.AfterFunc(ctx, func() { w.contextEnded(g, s) })
}

// watchOwn is watch for Lock.Context, which not every holder asks for.
func (c *simClient) watchOwn(g *simGrant, op int) {
	if c.w.plan.Contexts && c.roll(op, 242)%2 == 0 {
		c.w.watch(g, g.lock.Context(), nil)
	}
}

// contextEnded: a context ends when its lock was released, with ErrReleased; when it is lost, with
// ErrLost; when time is over, with ErrExpired as well; and with its caller.
func (w *simWorld) contextEnded(g *simGrant, s *simContext) {
	if w.t() >= g.proc.killedAt {
		return
	}
	end := g.ends()
	switch cause := context.Cause(s); {
	case errors.Is(cause, ErrReleased):
		if g.relCalled == never {
			w.violated("context: that of %v says that it was released", g)
		}
	case !errors.Is(cause, ErrLost):
		if s.caller == nil || s.caller.Err() == nil {
			w.violated("context: that of %v ended by %v, which says nothing of the lock", g, cause)
		}
	case errors.Is(cause, ErrExpired):
		if !isOver(end, g.proc.Now()) && !w.handing(g) {
			w.violated("context: that of %v ended, although neither its validity nor WithMaxHold is over: %v", g, cause)
		}
	default:
		g.mu.Lock()
		s.lost = true
		g.mu.Unlock()
	}
	w.reached("a context ends by a loss", errors.Is(context.Cause(s), ErrLost))
}

// ends is when the contexts of a lock are to end by time.
func (g *simGrant) ends() tick.Instant {
	g.mu.Lock()
	end := g.promises[len(g.promises)-1].told
	g.mu.Unlock()
	if most := g.lock.terms.maxHold; most > 0 {
		end = tick.Earliest(end, g.lock.grantedAt.Add(most))
	}
	return end
}

// lookAtContexts: the contexts of a lock that is over have ended, and its validity is over.
func (w *simWorld) lookAtContexts(g *simGrant) {
	if !w.plan.Contexts || w.dead(g.proc) {
		return
	}
	t := w.t()
	w.mu.Lock()
	lost := g.lostAt <= t
	w.mu.Unlock()
	if g.lock.Validity() > 0 && lost {
		w.violated("context: %v is lost, and valid for %v", g, g.lock.Validity())
	}
	over := w.overSince(g)
	for _, s := range g.contexts {
		switch {
		case s.Err() != nil:
		case s.caller != nil && s.caller.Err() != nil:
			w.violated("context: that of %v goes on, and that of its caller has ended", g)
		case t-over > simContextLate && len(g.proc.asleep) == 0 && !g.proc.setsWall():
			w.violated("context: that of %v goes on, although it is over since %.6f ms", g, ms(over))
		}
	}
}

// overSince is when the contexts of a lock were or will be to end, in true time.
func (w *simWorld) overSince(g *simGrant) int64 {
	w.mu.Lock()
	over := min(g.lostAt, g.mostUntil)
	w.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	return min(over, g.promises[len(g.promises)-1].until)
}

// lookAtSet: the context of a set ends when the first of its locks does, and not before.
func (w *simWorld) lookAtSet(ctx context.Context, grants []*simGrant) {
	p := grants[0].proc
	if !w.plan.Contexts || w.dead(p) || len(p.asleep) > 0 || p.setsWall() {
		return
	}
	first := grants[0]
	for _, g := range grants[1:] {
		if w.overSince(g) < w.overSince(first) {
			first = g
		}
	}
	switch over := w.overSince(first); {
	case ctx.Err() == nil && w.t()-over > simContextLate:
		w.violated("context: that of a set goes on, although %v is over since %.6f ms", first, ms(over))
	case ctx.Err() != nil && w.t() < over:
		w.violated("context: that of a set ended, although all of its locks are valid until %.6f ms: %v", ms(over), context.Cause(ctx))
	}
	w.reached("a context of a set ends by a loss", errors.Is(context.Cause(ctx), ErrLost))
}

// setsWall reports whether the process's wall clock is set, so that what is over may not be for a
// while.
func (p *simProcess) setsWall() bool { return len(p.wall.steps) > 0 }

// checkContexts: whoever is told of losses is told of those that end contexts.
func (w *simWorld) checkContexts(g *simGrant) {
	for _, s := range g.contexts {
		g.mu.Lock()
		lost := s.lost
		g.mu.Unlock()
		if lost && g.lostAt == never && g.proc.killedAt == never {
			w.violated("context: that of %v ended by a loss that Hooks.Lost is not told", g)
		}
	}
}

// checkRenewal: none begins when the time of WithMaxHold is over, or the lock was released.
func (w *simWorld) checkRenewal(g *simGrant, i ExtendInfo) {
	if !i.Renewal {
		return
	}
	began := g.proc.Now().Mono - int64(i.Elapsed)
	w.mu.Lock()
	called := g.relCalled
	w.mu.Unlock()
	if called != never && w.t() < g.proc.killedAt {
		if released := g.proc.mono.at(called); began > released+simMoment+2*int64(w.plan.Delay+w.plan.Jitter) { // it was about to begin
			w.violated("renewal: %v is renewed %.3f ms after its release", g, ms(began-released))
		}
	}
	if i.Err != nil {
		return
	}
	if most := g.lock.terms.maxHold; most > 0 && began-g.lock.grantedAt.Mono > int64(most)+simMoment {
		w.violated("context: %v is renewed, although WithMaxHold, %v, is over", g, most)
	}
}

// extendWithin is an extend that may be given up in the middle.
func (c *simClient) extendWithin(g *simGrant, op, i int, ttl time.Duration) error {
	w := c.w
	if !w.plan.Contexts || c.roll(op, 250+i)%3 != 0 {
		return g.lock.extend(context.Background(), ttl)
	}
	longest := w.plan.NodeTimeout
	if c.roll(op, 260+i)%2 == 0 {
		longest = 4 * (w.plan.Delay + w.plan.Jitter)
	}
	ctx, stop, ends := c.dies(context.Background(), c.within(op, 270+i, longest))
	defer stop()
	err := g.lock.extend(ctx, ttl)
	if t := w.t(); t > ends && err != nil {
		w.took(c.p, "an extend whose context had ended", ends, 0)
	}
	w.checkGivenUp(g, err, w.t() >= ends)
	return err
}

// checkGivenUp: an extend whose context ends does not end the lock, and none is given up before.
func (w *simWorld) checkGivenUp(g *simGrant, err error, ended bool) {
	if !errors.Is(err, context.Canceled) {
		return
	}
	if errors.Is(err, ErrLost) || !ended {
		w.violated("context: the extend of %v was given up, which is wrong: %v", g, err)
	}
	w.reached("an extend is given up", true)
}

// doWithin is the context of some calls of Do, which may end in the middle.
func (c *simClient) doWithin(ctx context.Context, op int) (context.Context, func(), int64) {
	if !c.w.plan.Contexts || c.roll(op, 280)%3 != 0 {
		return ctx, func() {}, never
	}
	return c.dies(ctx, c.within(op, 281, 3*c.w.plan.TTL))
}
