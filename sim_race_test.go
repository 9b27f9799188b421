//go:build race

package redlock

const simDefault = 200
