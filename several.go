package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// Mutexes describes several locks that are wanted together. It is made by All, has no state
// of its own, and serves any number of goroutines. On nil and on the zero value its methods fail with
// ErrInvalid.
type Mutexes struct {
	mutexes []*Mutex
	// order is where each stands among mutexes, by the names of their keys on the nodes. All
	// clients must agree on it, or two may wait for each other.
	order []int
	err   error // a broken rule
}

// All describes several locks that are wanted together: all of them or none. They must be of
// one Redlock and of different keys. Each keeps its own options, and all are renewed. What
// breaks a rule is reported by the methods, with ErrInvalid, before any I/O.
//
//	transfer := redlock.All(rl.Mutex("account:1"), rl.Mutex("account:2"))
//	err := transfer.Do(ctx, func(ctx context.Context, held redlock.Locks) error { ... })
//
// Locks that are free are acquired in one round trip, however many they are. Clients that
// use All cannot deadlock with each other, whatever the order in which they name their
// keys, and each has its turn. A program that acquires one lock while it holds another by
// itself has no such promise.
func All(mutexes ...*Mutex) *Mutexes {
	s := &Mutexes{mutexes: slices.Clone(mutexes)}
	broken := s.brokenRules()
	if s.err = invalid("set of locks", broken); s.err != nil {
		return s
	}
	for i := range mutexes {
		s.order = append(s.order, i)
	}
	slices.SortFunc(s.order, func(a, b int) int { return strings.Compare(s.mutexes[a].name, s.mutexes[b].name) })
	return s
}

func (s *Mutexes) brokenRules() (broken []string) {
	if len(s.mutexes) == 0 {
		return []string{"All was given no Mutex: at least one is needed"}
	}
	seen := make(map[string]bool)
	var set *nodeSet
	for i, m := range s.mutexes {
		switch {
		case m == nil || m.nodeSet == nil:
			broken = append(broken, fmt.Sprintf("Mutex %d was not made by Redlock.Mutex", i))
			continue
		case m.err != nil:
			broken = append(broken, strings.TrimPrefix(m.err.Error(), "redlock: "+ErrInvalid.Error()+" "))
		}
		if set == nil {
			set = m.nodeSet
		}
		switch {
		case m.nodeSet != set:
			broken = append(broken, fmt.Sprintf("%s is of another Redlock than the first: all must be of one", quoteKey(m.key)))
		case seen[m.name]:
			broken = append(broken, quoteKey(m.key)+" is there twice: keys must differ")
		}
		seen[m.name] = true
	}
	return broken
}

func (s *Mutexes) check(ctx context.Context) error {
	switch {
	case s == nil || len(s.mutexes) == 0 && s.err == nil:
		return fmt.Errorf("redlock: acquire: %w Mutexes: it was not made by All", ErrInvalid)
	case s.err != nil:
		return s.err
	default:
		return s.mutexes[0].check(ctx, protocol.OpAcquire)
	}
}

// TryAcquire asks for all of them once, at the same time, and never waits for a holder. If
// one is refused it gives back what it got, and fails as Mutex.TryAcquire does for the first
// that was refused, in the order of the keys' names on the nodes.
//
// Of several that ask for the same locks at the same moment one usually gets them all, but
// each may be refused one of them. Where one must succeed, use Acquire with a deadline.
func (s *Mutexes) TryAcquire(ctx context.Context) (Locks, error) { return s.acquire(ctx, false) }

// Acquire waits until it has all of them, ctx ends, or the time of the shortest WithMaxWait is
// over. Most callers want Do instead.
//
// It asks for all at once. If one is refused it gives the others back, waits in that one's
// queue, and then asks for the rest while it holds it. So while it waits it keeps no client from
// the others, at first. After a few turns without success it keeps those whose keys come before
// the one that it waits for, so that it has all of them in the end even if none is ever free for
// long.
//
// It fails as Mutex.Acquire does for the lock that it waited for. What it held is released
// then, without waiting for answers. Hooks are called for each lock by itself: for one that
// was held while waiting for another, also when it was acquired and released.
func (s *Mutexes) Acquire(ctx context.Context) (Locks, error) { return s.acquire(ctx, true) }

// Do acquires all of them, calls fn, and releases them, also when fn panics. It is Mutex.Do
// for several locks: fn's context ends with ctx, and with cause ErrLost when the first of them
// is lost.
func (s *Mutexes) Do(ctx context.Context, fn func(ctx context.Context, held Locks) error) error {
	if fn == nil {
		return fmt.Errorf("redlock: do: %w fn: it is nil", ErrInvalid)
	}
	held, err := s.acquire(ctx, true)
	if err != nil {
		return err
	}
	return withLost(held.whileHeld(ctx, func(ctx context.Context) error { return fn(ctx, held) }))
}

func (s *Mutexes) acquire(ctx context.Context, wait bool) (Locks, error) {
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	for _, m := range s.mutexes {
		if err := checkNested(ctx, &m.resource); err != nil {
			return nil, err
		}
	}
	within := ctx
	if wait {
		bound, cancel := boundWait(ctx, s.maxWait())
		defer cancel()
		within = bound
	}
	c := newCollection(s, ctx, within, wait)
	if !c.life.enter() {
		return nil, fmt.Errorf("redlock: acquire %s: %w", quoteKey(c.parts[0].key), ErrClosed)
	}
	defer c.life.leave()
	return c.acquire()
}

// maxWait is how long all may wait together: as the least patient of them; 0: without end.
func (s *Mutexes) maxWait() (most time.Duration) {
	for _, m := range s.mutexes {
		if d := m.terms.maxWait; d > 0 && (most == 0 || d < most) {
			most = d
		}
	}
	return most
}

// emptyHanded is for how many turns a collection holds nothing while it waits. Keeping a lock
// while waiting for another costs the calls that want only that one; never keeping any is
// starvation where all are always busy.
const emptyHanded = 4

// collection is one call of a method of Mutexes, until it has all locks or gives up.
type collection struct {
	*nodeSet
	caller  context.Context // given to the call
	ctx     context.Context // what ends the acquire, see acquisition
	wait    bool
	parts   []*part      // in order
	last    *QuorumError // of the part that was refused last
	waiting tick.Instant // since when it first waited
	waited  bool
}

// part is one of the locks.
type part struct {
	acquisition
	place int   // among those given to All
	held  *Lock // nil: not held
	told  bool  // the hooks know that it is held
}

func newCollection(s *Mutexes, caller, ctx context.Context, wait bool) *collection {
	c := &collection{nodeSet: s.mutexes[0].nodeSet, caller: caller, ctx: ctx, wait: wait}
	now := c.clock.Now()
	for nth, place := range s.order {
		m := s.mutexes[place]
		c.parts = append(c.parts, &part{place: place, acquisition: acquisition{
			resource: &m.resource, queues: m.queues, renewer: m.renewer, caller: caller, ctx: ctx, renews: true, start: now, nth: nth,
		}})
	}
	return c
}

// acquire returns all locks, or why it has none. A hook that does not return leaves nothing
// behind either.
func (c *collection) acquire() (held Locks, err error) {
	done := false
	defer func() {
		if !done {
			c.giveBack(all)
		}
	}()
	if busy := c.waitedFor(); busy >= 0 {
		if err := c.waitFor(busy, 0); err != nil {
			return nil, err
		}
	}
	for turns := 0; ; turns++ {
		var busy int
		var retryable bool
		var err error
		c.whileNew(c.ctx, c.parts[0].terms.NodeTimeout, func() (again bool) {
			busy, retryable, err = c.tryRest()
			return err != nil && retryable && onlyBarred(err)
		})
		switch {
		case err == nil:
			c.tellHeld(all)
			done = true
			return c.locks(), nil
		case !c.wait || !retryable:
			c.giveBack(all)
			done = true
			if c.last != nil {
				err = cutShort(c.ctx, c.last, err)
			}
			c.parts[busy].tellAcquired(nil, err)
			return nil, err
		}
		errors.As(err, &c.last)
		if err := c.waitFor(busy, turns); err != nil {
			return nil, err
		}
	}
}

// waitedFor is the first part that this process was refused lately, or that others of it wait for;
// -1 if there is none. A call that asks for such a lock at once may have it in the moment between a
// release and the claim of the one whose turn it is, again and again.
func (c *collection) waitedFor() int {
	if !c.wait {
		return -1
	}
	return slices.IndexFunc(c.parts, func(p *part) bool { return p.queues.recentlyRefused(p.resource) })
}

// waitFor waits in line for the part that was refused, and holds it. It holds no part behind
// that meanwhile: if there were a circle of calls that wait for each other, each would wait for
// a greater key than all that it holds, which cannot be.
func (c *collection) waitFor(busy, turns int) error {
	keep := func(i int) bool { return i < busy && turns >= emptyHanded }
	c.tellHeld(keep)
	c.giveBack(func(i int) bool { return !keep(i) })
	c.giveBackIfLost(true)
	defer c.giveBackIfLost(false)
	if !c.waited {
		c.waiting, c.waited = c.clock.Now(), true
	}
	p := c.parts[busy]
	a := acquisition{resource: p.resource, queues: p.queues, renewer: p.renewer, caller: c.caller, ctx: c.ctx, wait: true, renews: true, nth: p.nth}
	lock, err := a.acquire()
	if err == nil {
		p.held, p.told = lock, true
	}
	return err
}

// tryRest asks for all parts that are missing, at once. If that leaves some missing, it
// returns the first that is.
func (c *collection) tryRest() (busy int, retryable bool, err error) {
	asked := make([]*attempt, len(c.parts))
	busy = -1
	c.together(func() {
		for i, p := range c.parts {
			if p.held != nil {
				continue
			}
			p.attempts++
			if asked[i], err = p.ask(); err != nil {
				busy = i
				return
			}
		}
	})
	for i, p := range c.parts {
		switch at := asked[i]; {
		case at == nil:
		case busy >= 0:
			p.abandon(at)
		default:
			if p.held, retryable, err = p.conclude(at); err != nil {
				busy = i
			}
		}
	}
	if err != nil {
		return busy, retryable, err
	}
	return c.firstLost()
}

// firstLost is the first part that is not held any more, by the time that all others were
// granted.
func (c *collection) firstLost() (lost int, retryable bool, err error) {
	for i, p := range c.parts {
		if p.held.Validity() <= 0 {
			return i, true, p.held.tooLate()
		}
	}
	return -1, false, nil
}

// tooLate is why a lock that was granted is of no use.
func (l *Lock) tooLate() error {
	return &QuorumError{Op: protocol.OpAcquire.String(), Key: l.key, Need: l.quorum, Outcomes: l.Outcomes(), reasons: []error{ErrExpired}}
}

// locks are all parts in the order in which they were given to All.
func (c *collection) locks() Locks {
	held := make(Locks, len(c.parts))
	for _, p := range c.parts {
		held[p.place] = p.held
	}
	return held
}

func all(int) bool { return true }

// tellHeld tells the hooks of parts that are held.
func (c *collection) tellHeld(which func(i int) bool) {
	for i, p := range c.parts {
		if p.held == nil || p.told || !which(i) {
			continue
		}
		p.told = true
		if c.waited {
			p.waiting, p.waited = c.waiting, c.clock.Now().Since(c.waiting)
		}
		p.tellAcquired(p.held, nil)
	}
}

// giveBack releases parts, and does not wait for the answers. Lanes keep the order: what is
// asked of the same key next comes after it on every node.
func (c *collection) giveBack(which func(i int) bool) {
	c.together(func() {
		for i, p := range c.parts {
			if p.held != nil && which(i) {
				p.giveBack()
			}
		}
	})
}

func (p *part) giveBack() {
	released := p.held.giveBack(p.caller)
	if p.told {
		released()
	}
	p.held, p.told = nil, false
}

// giveBackIfLost has the parts that are kept released as soon as they are lost, and not when the wait for
// another is over; or no longer so.
func (c *collection) giveBackIfLost(waits bool) {
	for _, p := range c.parts {
		lock := p.held
		if lock == nil {
			continue
		}
		lock.mu.Lock()
		lock.giveBackLost = nil
		if waits {
			lock.giveBackLost = func() func() { return lock.giveBack(c.caller) }
		}
		lost := waits && lock.over != nil
		lock.mu.Unlock()
		if lost {
			lock.giveBack(c.caller)()
		}
	}
}
