// Package redlock provides a distributed lock that is held by a majority of independent Redis
// masters, after the Redlock algorithm.
//
// A lock is a key with a random value and a TTL on each of N nodes. It is granted when a majority of them has set the
// key. Its holder may rely on it until [Lock.Until]: the time before its first request, plus the TTL, less an
// allowance for clock drift. Any minority of nodes may be dead, hung, slow or cut off: acquiring, extending and
// releasing return as soon as a majority has decided. Package admin is for operators' tools.
//
//	rl, err := redlock.Open(ctx, []string{"10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.3:6379"}, nil)
//	...
//	err = rl.Mutex("report:daily").Do(ctx, func(ctx context.Context, lock *redlock.Lock) error {
//		return buildReport(ctx) // ctx ends, with cause ErrLost, if the lock is lost
//	})
//
// # Which method
//
// Most callers want [Mutex.Do]: it waits for the lock, runs a function while it renews the lock, and releases it.
// [Mutex.Acquire] waits and returns a [Lock] to release; [Mutex.TryAcquire] asks once. Their locks last for one TTL
// unless [WithRenewal] is given. A [Mutex] only describes a lock and may be shared freely. A [Lock] is one
// acquisition, so no holder can extend or release the lock of another. Call [Redlock.Close] before the program exits.
//
// [Mutex.Shared] is for many readers or one writer, [Redlock.Semaphore] for up to n holders, and [Mutex.Lead] for
// leader election. Package lockset takes several locks together, all of them or none, without deadlocks.
// [Lock.Detach] and [Mutex.Adopt] let another process go on with a lock. Acquiring a key with the context of a lock
// already held on it would deadlock, so it fails with [ErrNested]; see [WithReentry].
//
// # Waiting
//
// Acquire and Do wait in a queue: first come, first served, across goroutines and processes, with exceptions that
// docs/safety.md names. One node keeps the queue of a key. A release reserves the lock for the first waiter and
// notifies it, so waiters do not poll. The queue only decides which waiter asks next; the majority alone decides
// which client holds the lock. A queue that is lost or wrong therefore costs time, never exclusion. Shared locks and
// permits of a semaphore wait in the same queue. TryAcquire does not join it and may overtake.
//
// [WithMaxWait] bounds the wait and not the work; the context bounds both. [Hooks.Waiting] is
// called when a wait begins.
//
// # What a node is
//
// Nodes must fail independently of each other. They are N masters that know nothing of one
// another: no replicas, and not the nodes of one cluster. One node makes an ordinary
// single-server lock. Three nodes tolerate the loss of one, five the loss of two. An even
// number tolerates no more than the odd number below it, so two tolerate none. All clients
// of a lock need the same nodes. To wait in one queue, they also need to know the nodes by
// the same addresses, or by the same [Options.NodeNames].
//
// [New] takes clients of go-redis, a *redis.Client for each node. A Sentinel failover client is
// a node whose master may change. The promoted replica may lack the latest locks, so it is treated
// as a restarted node, also by clients that connect later. Clients of a cluster or a ring are refused:
// their servers fail and fail over together, so a quorum of them would be none.
//
// # Restarted nodes
//
// A node that restarts without its keys forgets its votes, and its new vote could give a
// second client a majority. Its votes for new locks therefore do not count until every
// lease that it may have granted has ended ([Options.RestartGuard]). The same holds for a
// promoted replica, for data that was replaced, and after FLUSHALL: each node keeps one
// small key, the memory mark, and where that is gone, or is another node's, data was lost.
// The node still takes part in extends and releases. Its [Outcome] has [VoteBarred].
//
// # What it does not promise
//
// No lease can stop a holder that was paused past Until from going on when it wakes. Check
// [Lock.Validity] or the context right before the work that must be exclusive. If the
// resource can refuse stale writers, let it: with [WithFencing], every grant of a key has a
// greater [Lock.Fence] than all before it. Eviction (maxmemory-policy other than noeviction)
// deletes single locks unnoticed.
//
// # Errors
//
// Errors wrap [ErrHeld], [ErrNoQuorum] or one of the other reasons. If nodes were asked, errors.As finds a
// [QuorumError] with the answer of each. [ErrHeld], [ErrNoQuorum] and [ErrExpired] may pass; [ErrInvalid],
// [ErrNested] and [ErrDuplicateNode] are mistakes in the program or its configuration.
//
// # Watching
//
// [Options.Hooks] are called when locks are granted or lost and when nodes go down.
// [LogHooks] writes logs; the modules extra/redlockprom and extra/redlockotel make metrics
// and traces.
package redlock
