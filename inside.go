package redlock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock/internal/conn"
	"github.com/quorumlock/redlock/internal/guard"
	"github.com/quorumlock/redlock/internal/inside"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// Tests of promises are in a package of their own, so that the root's own tests take seconds.
func init() {
	inside.NewLikeOpen = func(clients any) (any, error) {
		o, err := (*Options)(nil).withDefaults()
		return build(clients.([]redis.UniversalClient), o, tick.NewSystem(), conn.OpenHabits), err
	}
	inside.NewWithClock = func(clients, opts any, c tick.Clock) (any, error) {
		given, _ := opts.(*Options)
		o, err := given.withDefaults()
		if err != nil {
			return nil, err
		}
		return build(clients.([]redis.UniversalClient), o, c, conn.UserHabits), nil
	}
	inside.Assemble = func(names []string, wires []lane.Wire, opts any, nodeTimeout time.Duration, process string, c tick.Clock) (any, error) {
		o, err := opts.(*Options).withDefaults()
		if err != nil {
			return nil, err
		}
		o.NodeTimeout = nodeTimeout
		rl := assemble(names, wires, o, c)
		rl.queues.process = process
		return rl, nil
	}
}

func init() {
	inside.Lanes = func(client any) (all []*lane.Lane) {
		for _, n := range client.(*Redlock).nodes {
			all = append(all, n.lane)
		}
		return all
	}
	inside.Guard = func(client any) *guard.Guard { return client.(*Redlock).guard }
	inside.Order = func(key string, nodes []string) []int {
		hashes := make([]uint64, len(nodes))
		for i, name := range nodes {
			hashes[i] = fnv1a(name)
		}
		return byWeight(fnv1a(key), hashes)
	}
	inside.HasWaiter = func(client any, token string) bool {
		qs := client.(*Redlock).queues
		qs.mu.Lock()
		defer qs.mu.Unlock()
		return qs.byName[nameOf(token)] != nil
	}
	inside.AwaitKeys = func(client any, more int64) { client.(*Redlock).queues.awaited.Add(more) }
	inside.NarrowWindows = func(client any, most int) { client.(*Redlock).queues.mostInside = most }
	inside.Allow = func(lock any) { lockableOf(lock).err = nil }
	inside.NoFence = func(lock any) { lockableOf(lock).terms.fencing = false }
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
			Longest: l.longest, Number: int(l.permit), AdoptedFrom: l.adoptFrom(),
		}
	}
	inside.SetUntil = func(held any, until tick.Instant) {
		l := held.(*Lock)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.until = until
	}
	inside.Extend = func(held any, ctx context.Context, ttl time.Duration) error { return held.(*Lock).extend(ctx, ttl) }
	inside.StartRelease = func(held any) func() error {
		l := held.(*Lock)
		sent, start := l.startRelease(true)
		return func() error { return l.endRelease(context.Background(), sent, start) }
	}
}

func init() {
	inside.ForceRelease = func(lock any, ctx context.Context, token string) error {
		m := lock.(*Mutex)
		if err := m.usable(ctx, protocol.OpForceRelease); err != nil {
			return err
		}
		r, err := m.ask(ctx, protocol.ForceRequest(&m.terms.Terms, m.name, token, m.queueKey(), m.holdersKey()))
		if err != nil {
			return fmt.Errorf("redlock: force release %s: %w", quoteKey(m.key), err)
		}
		var counts protocol.Forced
		kinds := map[Vote]protocol.Kind{VoteGranted: protocol.Granted, VoteRefused: protocol.Refused}
		for i := range r.seats {
			vote, b := r.ballot(i)
			b.Kind = kinds[vote]
			counts.Add(b)
		}
		if why := counts.Failed(len(m.nodes), nil); why != nil {
			return m.failed(r, protocol.OpForceRelease, why)
		}
		return nil
	}
	inside.HeldIn = func(ctx context.Context, held any) context.Context { return withHeld(ctx, held.(*Lock)) }
	inside.SetRandom = func(client any, r io.Reader) { client.(*Redlock).tokens.random = r }
	inside.Nodes = func(client any) (clients, opts any) {
		rl := client.(*Redlock)
		o := rl.opts
		o.NodeNames = rl.Nodes()
		return rl.clients, o
	}
	inside.LaneLoad = func(client any, node int) (queued, kept int) { return client.(*Redlock).nodes[node].lane.Load() }
	inside.LoadScripts = func(client any) error {
		var errs []error
		for _, client := range client.(*Redlock).clients {
			for _, s := range []*protocol.Script{protocol.ReleaseScript, protocol.QueueReleaseScript, protocol.JoinScript, protocol.ClaimScript} {
				errs = append(errs, client.ScriptLoad(context.Background(), s.Source).Err())
			}
		}
		return errors.Join(errs...)
	}
	inside.Waits = func(client any) (waiters, subscriptions int) {
		qs := client.(*Redlock).queues
		qs.mu.Lock()
		defer qs.mu.Unlock()
		for _, q := range qs.byKey {
			waiters += q.window.len()
		}
		return waiters, len(qs.subs)
	}
	inside.Queues = func(client any) int {
		qs := client.(*Redlock).queues
		qs.mu.Lock()
		defer qs.mu.Unlock()
		return len(qs.byKey)
	}
	inside.NodeOrder = func(lock any) []int { return lockableOf(lock).nodeOrder() }
	inside.QueueKey = func(lock any) string { return lockableOf(lock).queueKey() }
	inside.SawLease = func(lock any, left time.Duration) { lockableOf(lock).sawLease(left) }
	inside.QueueKeyOf = func(key string) string { return protocol.NamingOf(key).QueueKey(key) }
	inside.NamesBeside = func(key string) (all []string) {
		n := protocol.NamingOf(key)
		for _, beside := range []string{n.QueueKey(key), n.HoldersKey(key), n.DoorKey(key), n.FenceKey(key)} {
			if beside != "" {
				all = append(all, beside)
			}
		}
		return all
	}
	inside.NewQuorumError = func(op, key string, need int, left time.Duration, outcomes any, reasons ...error) error {
		return &QuorumError{Op: op, Key: key, Need: need, HolderTTL: left, Outcomes: outcomes.([]Outcome), reasons: reasons}
	}
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
