//go:build !race

package redlock_test

const crowd = 10_000
