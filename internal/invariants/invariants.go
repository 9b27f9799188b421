// Package invariants has the code look, while it is tested, at what it must hold whatever happens: built with the race
// detector or with the tag invariants, a program that finds it broken panics. In any other build On is false, and the
// compiler leaves the looks out.
//
//	if invariants.On && a > b {
//		invariants.Broken("%d is more than %d", a, b)
//	}
package invariants

import "fmt"

// Before is called ahead of the panic. A test that cannot know what panics may set it, before anything runs, to say
// what it was doing.
var Before = func() {}

// Broken panics: what was found is a fault of this library.
func Broken(format string, args ...any) {
	Before()
	panic("bug: " + fmt.Sprintf(format, args...))
}
