// Package contract shows what the library expects of a node, on the servers of the simulation, on miniredis and on
// real ones: if the first answered otherwise, the simulation would prove something about another world. It has tests
// only.
package contract
