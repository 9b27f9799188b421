package redlock

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock/internal/conn"
	"github.com/quorumlock/redlock/internal/inside"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// Tests of promises are in a package of their own, so that the root's own tests take seconds.
func init() {
	inside.NewWithClock = func(clients []redis.UniversalClient, opts any, c tick.Clock) (any, error) {
		given, _ := opts.(*Options)
		o, err := given.withDefaults()
		if err != nil {
			return nil, err
		}
		return build(clients, o, c, conn.UserHabits), nil
	}
	inside.SetRandom = func(client any, r io.Reader) { client.(*Redlock).tokens.random = r }
	inside.LaneLoad = func(client any, node int) (queued, kept int) { return client.(*Redlock).nodes[node].lane.Load() }
	inside.LoadScripts = func(client any) error {
		var errs []error
		for _, n := range client.(*Redlock).nodes {
			client := n.lane.Wire.(*conn.Wire).Client
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
			waiters += q.waiters.Len()
		}
		return waiters, len(qs.subs)
	}
	inside.Queues = func(client any) int {
		qs := client.(*Redlock).queues
		qs.mu.Lock()
		defer qs.mu.Unlock()
		return len(qs.byKey)
	}
	inside.NodeOrder = func(lock any) []int { return lock.(*Mutex).nodeOrder() }
	inside.QueueKey = func(lock any) string { return lock.(*Mutex).queueKey() }
	inside.SawLease = func(lock any, left time.Duration) { lock.(*Mutex).sawLease(left) }
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
