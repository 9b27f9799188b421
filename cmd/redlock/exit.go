package main

import (
	"strconv"
	"strings"
)

// What run exits with besides the command's own status. The last two are those of shells.
const (
	exitBusy       = 120 // -E sets another
	exitNoQuorum   = 121
	exitLost       = 122
	exitRunFailed  = 123
	exitCannotExec = 126
	exitNotFound   = 127
)

// exitStatus is an error with an exit status of its own.
type exitStatus struct {
	code int
	err  error // nil: nothing to say
}

// because is an error with what it led to before it.
type because struct {
	what string
	err  error
}

func (e *because) Error() string { return e.what + strings.TrimPrefix(e.err.Error(), "redlock: ") }
func (e *because) Unwrap() error { return e.err }

func (e *exitStatus) Error() string {
	if e.err == nil {
		return "exit status " + strconv.Itoa(e.code)
	}
	return e.err.Error()
}

func (e *exitStatus) Unwrap() error { return e.err }
