//go:build race

package redlock_test

// crowd is smaller where everything takes ten times as long.
const crowd = 1_000
