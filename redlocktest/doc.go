// Package redlocktest runs a cluster of independent Redis masters inside the
// test's process and lets them fail: nodes hang, crash, lose their memory, fall
// behind a partition, jump in time or are replaced by a stale replica, one method
// call each. It is made to test code that holds Redlock locks, and needs neither
// redis-server nor root rights.
//
//	cluster := redlocktest.NewCluster(t, 5)
//	clients := cluster.Clients() // for redlock.New
//	addrs := cluster.Addrs()     // or TCP addresses, for redlock.Open
//
//	cluster.Node(0).Hang()                          // accepts, never answers
//	cluster.Node(1).Stop()                          // kill -9
//	cluster.Node(1).Restart(redlocktest.LoseKeys)   // back, and empty
//	cluster.Node(2).Partition(redlocktest.DropReplies)
//	holders := cluster.Holders("orders:42")         // what each node really holds
//
// # Nodes
//
// A node is a miniredis whose keys expire as time passes, behind a proxy that produces the faults
// on the wire. What a node can do is what miniredis can do: scripts, pub/sub, transactions and
// RESP3, but no persistence, no memory limit and no CONFIG. Beyond it a node answers INFO server,
// INFO replication and INFO stats, as far as a client needs to notice a restart or a promotion, and
// Check of package admin [Node.Evict]. A node has databases 0 to 15.
//
// miniredis is no requirement of the library itself, so run "go mod tidy" after the first
// import of this package.
//
// # Lines that go-redis prints
//
// A test that passes may print lines such as "redis: ... pool.go:...: Unexpected conn[1]
// state changed by hook to CLOSED, closing it" on standard error. go-redis writes one when a
// client is closed while a command is under way, as to a node that hangs, and others when a
// dial fails. They mean no harm. go-redis has one logger for the whole program, which cannot
// be read back, so this package leaves it alone. A test binary that wants silence calls
// logging.Disable of github.com/redis/go-redis/v9/logging in its TestMain.
//
// # Emptying nodes between tests
//
// A Redlock keeps one key on each node, the memory mark redlock:memory, which has no
// expiry. So a test that looks for keys left behind has to leave it out. And a Redlock
// takes a node whose mark is gone for one that has forgotten locks: after
// [Node.FlushAll] of a majority, a Redlock that was there before gets no lock for the
// restart guard's period, by default the lock's TTL. A suite that empties the nodes
// between tests and goes on with the same Redlock sets Options.NoRestartGuard, or
// removes the keys that it knows with [Node.Del].
//
// # Two kinds of faults
//
// Some happen to the server process: [Node.Stop] and [Node.Restart], [Node.Hang]
// and [Node.Resume], [Node.Failover], [Node.ShiftClock]. Others happen to the
// network between all clients and the node: [Node.Partition] and [Node.Heal],
// [Node.Delay], [Node.DelayCommand], [Node.DropReply], [Node.Garbage], [Node.Cut].
// The two kinds are independent: a node that is restarted behind a partition is
// reached again after Heal, not before. Each fault is ended by its counterpart and
// by nothing else.
//
// # Fake time
//
// A cluster that is used through [Cluster.Clients] and [Cluster.Client] has no
// sockets and works inside a testing/synctest bubble, where a test of a minute's
// lease takes a millisecond. Make the cluster inside the bubble, close the Redlock before the
// bubble ends, and do not ask for TCP addresses there: a goroutine that waits for a socket
// keeps fake time from going on.
//
// Two traps of go-redis in bubbles are avoided by the clients made here and lie in
// wait for others: with maintenance notifications not disabled it may look up a
// host name, and a command that has to wait for a free connection uses a timer
// that may come from another bubble. Either ends the test binary. So Client should
// keep PoolSize at or above the number of concurrent commands in bubbles, and leave
// MaxRetries and DialerRetries alone: go-redis' pauses between tries outlive a bubble.
package redlocktest
