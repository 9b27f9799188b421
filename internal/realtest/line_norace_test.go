//go:build !race

package realtest

const crowd = 10_000
