//go:build race

package redlock_test

// underRace: the race detector makes long runs in virtual time ten times longer, and finds in
// a few of them what it finds in all.
const underRace = true
