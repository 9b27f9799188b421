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

// told is an error as people are told of it.
type told struct {
	text string
	err  error
}

func (t *told) Error() string { return t.text }
func (t *told) Unwrap() error { return t.err }

// because is an error with what it led to before it.
func because(what string, err error) error {
	return &told{what + strings.TrimPrefix(err.Error(), "redlock: "), err}
}

func (e *exitStatus) Error() string {
	if e.err == nil {
		return "exit status " + strconv.Itoa(e.code)
	}
	return e.err.Error()
}

func (e *exitStatus) Unwrap() error { return e.err }
