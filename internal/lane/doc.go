// Package lane is the ordered, batched way to one node, and the only one.
//
// A [Lane] takes calls from any goroutine and sends them in batches: one batch is out at a time, and
// what comes meanwhile makes the next one. Only on a link with a long round trip are several out, and
// never two with the same key.
//
// What it promises upwards:
//   - [Lane.Enqueue] and its siblings never wait for I/O. A call with a [Caller] is answered by its deadline. If that
//     answer is not final, others may follow, the last of them final, except for a kept release that is forgotten and
//     for what Abandon drops. Deliver runs with no mutex of the lane held.
//   - Calls on one key and of one class (see backlog) take effect in the order in which they were enqueued, or not at
//     all. A release drops the SET that it takes back if that still waits, and else follows it.
//   - A release is not given up before its key is gone from the node by itself, unless the node refuses it for good:
//     it is kept while the
//     node is away, sent again where its SET may still land ([Call] says when that is so), and sent
//     by Close. A node that is away costs a few commands per second, however many releases wait.
//   - Nothing piles up behind a node that hangs: acquires are refused at once with the reason.
//
// What it expects downwards is [Wire]: a batch goes over one connection, in order, each request once
// and never again; Exchange returns when the batch is answered or the connection is over. What has no
// answer then may take effect at any later time.
//
// One mutex, Lane.Mu, guards the queue, the batches that are out, the releases that are kept, and the
// fields of calls that say so. It is never held across I/O, and nothing is locked under it but the
// mutexes of the clock and of the func that is told of changes.
//
// Words: a call is due when its caller's time is up (Call.Deadline, which the caller sets), and a
// batch overdue when the node's time is up: the longest Request.Timeout in it, counted from when it
// was sent, see batch.patience. A lane with an overdue batch counts as down and refuses acquires.
//
// Where to look: lane.go has the states of a lane, batch.go says what goes together and when, call.go what becomes of
// one request, bundle.go how releases go in one command, wire.go what is expected of a connection, kept.go has the
// releases that wait for their node, breaker.go the pause before a node is tried again, and standby.go the goroutine
// that waits for the next batch.
package lane
