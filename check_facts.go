package redlock

import "time"

const (
	// checkPatience bounds how long Check waits for a node.
	checkPatience = 3 * time.Second
	// clockPatience is by how much clocks may differ before Check says so.
	clockPatience = time.Second
	// clockSamples is how many times a node is asked for its time; the quickest answer counts.
	clockSamples = 3
)

// facts are what is known about a node. The findings are made from them.
type facts struct {
	NodeReport
	many   bool // a cluster or ring client: several servers
	cut    bool // waiting was over before the node had answered everything
	unread []unread
	lacks  []denial
	masked bool // the probe's key was refused, so nothing is known of rights to keys
}

// unread is a question without an answer: what was asked, what is not known without it, and
// the error.
type unread struct{ what, means, err string }

// denial is a right that the user lacks.
type denial struct {
	need need
	what string
	err  string
}

// need is what a right is needed for.
type need uint8

const (
	forLocks need = iota + 1
	forLines
	forNotices
)

// serving counts the nodes that can be used.
func serving(all []facts) (n int) {
	for _, f := range all {
		if f.Err == nil {
			n++
		}
	}
	return n
}
