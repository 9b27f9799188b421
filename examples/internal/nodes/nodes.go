// Package nodes gives the examples their nodes: nodes inside the program, or the reader's
// own servers. Your own program does not need this package: it has a list of addresses for
// redlock.Open.
package nodes

import (
	"os"
	"strings"

	"github.com/redis/go-redis/v9/logging"

	"github.com/quorumlock/redlock/redlocktest"
)

// go-redis prints a line for every dial that fails, in the middle of our output. The library
// names the node in its errors, and calls Hooks.NodeDown.
func init() { logging.Disable() }

// Usage describes the flag -addrs.
const Usage = "Redis `servers` to use instead of nodes inside this program: host1:6379,host2:6379,... " +
	"or redis:// URLs. Those with a password belong into $REDLOCK_ADDRS, where other users of the machine cannot read them"

// Nodes are what redlock.Open is to connect to. Close them after everything that uses them.
type Nodes struct {
	Addrs []string
	// Cluster is nil for the reader's own servers. An example must not break those.
	Cluster *redlocktest.Cluster
}

// Start takes the addresses of the flag -addrs, else those of $REDLOCK_ADDRS, and starts
// five nodes where there are none either.
func Start(addrs string) (*Nodes, error) {
	if addrs == "" {
		addrs = os.Getenv("REDLOCK_ADDRS")
	}
	if addrs != "" {
		list := strings.Split(addrs, ",")
		for i, a := range list {
			list[i] = strings.TrimSpace(a)
		}
		return &Nodes{Addrs: list}, nil
	}
	return Embedded()
}

// Embedded starts five nodes inside this program.
func Embedded() (*Nodes, error) {
	cluster, err := redlocktest.Start(5)
	if err != nil {
		return nil, err
	}
	// The log keeps every command, which is for tests.
	cluster.Record(false)
	return &Nodes{Addrs: cluster.Addrs(), Cluster: cluster}, nil
}

// Close stops nodes inside the program.
func (n *Nodes) Close() {
	if n.Cluster != nil {
		n.Cluster.Close()
	}
}
