// Package guard keeps nodes that may have forgotten what they granted from voting, and servers that
// are behind two nodes from voting twice.
//
// A node may vote for a lock once its data has been remembering for as long as a lease that it might
// have forgotten. There are two witnesses: a change of the server or of its data that this client saw
// itself, and the memory mark, a key on the node that tells clients that come later.
//
// What it promises upwards: [Guard.Judge] says whether a grant of a node may count now, and for how long not, by what
// is known of that node alone; [Guard.Why] gives the reason as an error. Judge costs one atomic load. Saw takes the
// mutex only where a look shows something new.
//
// What it expects downwards, of the package conn: [Guard.Saw] is told what a server reports before the
// answers of the same connection are delivered; a mark that Saw returns is written over that
// connection, and Saw is told what is there then.
//
// memory.go has the rules and is pure: no I/O, no clock, no goroutines. testdata/guard.txt shows them as stories;
// "The guard: a node's own mark decides" in docs/design.md has the reasons. guard.go applies them: Guard.mu guards
// what is known of all nodes, and under it only the func given to New takes mutexes.
package guard
