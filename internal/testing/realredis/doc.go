// Package realredis runs real redis-server processes on the loopback interface
// for tests, benchmarks and other tools of this repository.
//
// A simulated server proves little about a lock: what matters here is what the
// real one does when it is stopped, killed, restarted without its data, or
// when it refuses a command. Each [Server] has its own port and its own
// temporary directory, starts within milliseconds, and can be paused, killed
// and restarted on the same port.
//
//	nodes := realredis.StartN(t, 5)
//	nodes[0].Pause() // hangs: accepts connections, answers nothing
//	nodes[1].Kill()  // refuses connections
//	nodes[1].Restart() // an empty node under the old address
//
// Tests skip when no redis-server is installed, see [Need]. On Linux no server
// outlives the process which started it, however that process ends.
package realredis
