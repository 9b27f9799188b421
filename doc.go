// Package redlock is a distributed lock held by a majority of independent Redis
// masters, after the Redlock algorithm.
//
// A lock is a key with a random value and a TTL on each of N nodes. It is granted when
// a majority of them set the key, and its holder may rely on it until the TTL, counted
// from before the first request left, less an allowance for clocks that run at
// different rates (Lock.Until). Any minority of nodes may be dead, hung, slow or cut
// off: every operation returns as soon as a majority has decided it.
//
//	rl, err := redlock.Open(ctx, []string{"10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.3:6379"}, nil)
//	...
//	err = rl.Mutex("orders:42").Do(ctx, func(ctx context.Context, lock *redlock.Lock) error {
//		return chargeCard(ctx) // ctx ends when the lock is over or lost
//	})
//
// # Which method
//
// Most callers want [Mutex.Do]: it waits, renews, runs a function and releases.
// [Mutex.Acquire] waits and returns a [Lock] to release by hand; [Mutex.TryAcquire]
// asks once. A [Mutex] only describes a lock and may be shared freely; a [Lock] is one
// acquisition, so no two holders can mistake each other's.
//
// # Waiting
//
// Acquire and Do wait in line: first come, first served, across goroutines and
// processes. One node keeps the line of a key, and a release reserves the lock for the
// first in it and tells it so; nobody polls. The line decides only who asks next. Who
// holds the lock is decided by the majority alone, so a line that is lost or wrong costs
// time and never exclusion. TryAcquire does not queue and may overtake.
//
// # What a node is
//
// Nodes must fail independently of each other: N masters that know nothing of one
// another, not replicas, and not the nodes of one cluster. One node makes an ordinary
// single-server lock. Three tolerate the loss of one, five of two; an even number
// tolerates no more than the odd one below it, and two tolerate none. All clients of a
// lock need the same nodes, and to wait in one line they need to know them by the same
// addresses.
//
// [New] takes clients of any kind. A Sentinel failover client is a node whose master
// may change: the replica that is promoted may lack the latest locks, so it is treated
// as a restarted node. A cluster or ring client counts as one node: it gives no quorum
// by itself, and go-redis' own timeouts apply to it instead of ours.
//
// # Restarted nodes
//
// A node that restarts without its keys forgets its votes, and with it a second client
// could get a majority. So a node that restarted has no vote for new locks until every
// lease that it may have granted is over ([Options.RestartGuard]); its part in extends
// and releases goes on. [VoteBarred] in an [Outcome] tells of it.
//
// # What it does not promise
//
// A lock with a lease cannot stop a holder that is paused past Until from going on
// when it wakes: check [Lock.Validity] or the context right before what must be
// exclusive, and where it can, let the resource itself refuse stale writers: with
// [WithFencing] every grant of a key has a greater [Lock.Fence] than all before it.
// Evicting nodes (maxmemory-policy other than noeviction) and FLUSHALL delete locks
// unseen.
//
// # Errors
//
// Errors wrap [ErrHeld], [ErrNoQuorum] and the other reasons; where nodes were asked,
// errors.As finds a [QuorumError] that names each node and what it said.
//
// # Watching
//
// [Options.Hooks] are told of grants, losses and nodes that go down: [LogHooks] writes
// logs, and the modules extra/redlockprom and extra/redlockotel make metrics and traces.
package redlock
