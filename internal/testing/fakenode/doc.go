// Package fakenode is a Redis server in Go, as far as this library uses one: strings, sorted sets,
// expiry, and the Lua scripts of package protocol, written again in Go.
//
// It exists for tests: the simulation runs thousands of such nodes in virtual time, and golden files
// are computed with it. That it answers as a server does is shown case by case by the contract test,
// which runs the same requests on real servers. A change of a script is a change here as well, and
// that test fails until both are alike.
//
// A [Store] is used by one goroutine at a time. It has no clock: the time is a func.
package fakenode
