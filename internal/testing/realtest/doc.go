// Package realtest holds the tests that use the library as its users do, by what it
// exports: on redis-server processes behind proxies that break, and where hours have to
// pass, on simulated nodes in virtual time. It has no code but tests.
package realtest
