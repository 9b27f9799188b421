//go:build !race

package realtest_test

const crowd = 10_000
