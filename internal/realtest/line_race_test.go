//go:build race

package realtest_test

// crowd is smaller where everything takes ten times as long.
const crowd = 1_000
