// Package promises has the tests of what a user relies on, by the public API, on embedded servers that fail and in
// virtual time. Those on real servers are in internal/testing/realtest.
package promises
