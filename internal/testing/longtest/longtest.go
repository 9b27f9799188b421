// Package longtest says whether tests shall do all that they can. By default a test that finds
// in a few cases what it finds in many does the few, so that all tests take a minute.
package longtest

import "os"

// On reports whether the environment has REDLOCK_LONG_TESTS, as .ci/deep sets it.
func On() bool { return os.Getenv("REDLOCK_LONG_TESTS") != "" }
