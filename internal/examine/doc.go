// Package examine asks nodes about themselves and judges what they say, for admin.Nodes.Check.
//
// What it promises upwards: [All] returns what is known of each node when it has answered or the time
// is over, however many hang; [Remember] and [Barring] add what a client that comes now would make of
// their memory marks; [Judge] turns the facts into findings. Nothing is written on the nodes: a right is
// tested by a command that fails also where it is allowed ([probe]).
//
// What it expects downwards: a go-redis client for each node, of which it makes one of its own, as
// lanes may be blocked; the rules of the package guard, which are pure.
//
// Each node is asked on a goroutine of its own, which hands over what it knows after each step; there
// are no mutexes. facts.go is what is known of a node, examine.go and rights.go ask, and judge.go has
// neither I/O nor time.
package examine
