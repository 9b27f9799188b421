package redlock

import (
	"cmp"
	"context"
	"time"

	"github.com/quorumlock/redlock/internal/inside"
	"github.com/quorumlock/redlock/internal/protocol"
)

// The simulation is in a package of its own, so that the root's own tests take seconds.
func init() {
	inside.DialTimeout = openPatience
	inside.Assemble = func(a inside.Assembly) (any, inside.Parts, error) {
		given, _ := a.Options.(*Options)
		o, err := given.withDefaults()
		if err != nil {
			return nil, inside.Parts{}, err
		}
		o.NodeTimeout = cmp.Or(a.NodeTimeout, o.NodeTimeout)
		rl := assemble(a.Names, a.Wires, o, a.Clock)
		rl.tokens.random, rl.queues.process = a.Random, cmp.Or(a.Process, rl.queues.process)
		rl.queues.mostInside = cmp.Or(a.Room, rl.queues.mostInside)
		return rl, rl.parts(), nil
	}
	inside.Allow = func(lock any) {
		m := lockableOf(lock)
		m.err, m.terms.fencing = nil, m.terms.fencing && !m.terms.shared
	}
	inside.TermsOf = func(lock any) inside.Terms {
		var t *terms
		if held, ok := lock.(*Lock); ok {
			t = &held.terms
		} else {
			t = &lockableOf(lock).terms
		}
		return inside.Terms{
			TTL: t.TTL, NodeTimeout: t.NodeTimeout, MaxWait: t.maxWait, MaxHold: t.maxHold, MinHold: t.minHold,
			Fencing: t.fencing, Shared: t.shared, Renew: t.renew, Permits: t.permits,
		}
	}
	inside.StateOf = func(held any) inside.State {
		l := held.(*Lock)
		l.mu.Lock()
		defer l.mu.Unlock()
		return inside.State{
			Value: l.value, GrantedAt: l.grantedAt, Until: l.until, Over: l.over != nil, Renews: l.renews,
			Longest: l.longest, Number: int(l.permit.Load()), AdoptedFrom: l.adoptFrom,
		}
	}
	inside.Extend = func(held any, ctx context.Context, ttl time.Duration) error { return held.(*Lock).extend(ctx, ttl) }
	inside.StartRelease = func(held any) func() error {
		l := held.(*Lock)
		sent, start := l.startRelease(true)
		return func() error { return l.endRelease(context.Background(), sent, start) }
	}
}

func (rl *Redlock) parts() inside.Parts {
	p := inside.Parts{Guard: rl.guard}
	for _, n := range rl.nodes {
		p.Lanes = append(p.Lanes, n.lane)
	}
	p.HasWaiter = func(token string) bool {
		rl.queues.mu.Lock()
		defer rl.queues.mu.Unlock()
		return rl.queues.byName[nameOf(token)] != nil
	}
	p.Ask = func(ctx context.Context, req *protocol.Request) ([]protocol.Answer, error) {
		if rl.life.closed() {
			return nil, ErrClosed
		}
		r, err := rl.ask(ctx, req)
		all := make([]protocol.Answer, len(r.seats))
		for i := range all {
			_, all[i] = r.ballot(i)
		}
		return all, err
	}
	return p
}

// lockableOf is what describes a lock, an exclusive one or not.
func lockableOf(lock any) *lockable {
	switch m := lock.(type) {
	case *SharedMutex:
		return &m.lockable
	case *Semaphore:
		return &m.lockable
	default:
		return &lock.(*Mutex).lockable
	}
}
