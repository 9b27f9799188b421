package admin_test

import (
	"context"
	"fmt"

	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/redlocktest"
)

// Check says what is wrong with the nodes before it costs a lock. It leaves nothing on them.
func ExampleNodes_Check() {
	cluster, err := redlocktest.Start(3)
	if err != nil {
		panic(err)
	}
	defer cluster.Close()
	cluster.Node(2).Stop()
	nodes, err := admin.New(cluster.Clients(), nil)
	if err != nil {
		panic(err)
	}
	report, err := nodes.Check(context.Background())
	fmt.Println(err)
	for _, n := range report.Nodes {
		fmt.Println(n.Node, n.Reachable)
	}
	for _, f := range report.Findings {
		if f.Code == "unreachable" {
			fmt.Println(f.Severity, f.Node)
		}
	}
	// Output:
	// <nil>
	// node0:6379/0 true
	// node1:6379/0 true
	// node2:6379/0 false
	// warning node2:6379/0
}
