package redlock

import (
	"errors"
	"time"
)

// The memory mark is made elsewhere. This file has the names by which a conversation knows
// it, so that the two can be built apart; it goes away when they meet.

type markState uint8

const (
	markUnread markState = iota // denied, or not asked for
	markAbsent
	markPresent
)

type mark struct {
	state markState
	text  string // the key's bytes, compared as a whole
	age   time.Duration
	err   error // why it is unread
}

type markWrite struct{}

var errNoMarks = errors.New("memory marks are not built in")

// readMark makes a mark of what lay under its key and of the server's TIME, 0 if that was
// not asked for.
func readMark(text string, present bool, serverTime time.Duration) mark {
	if !present {
		return mark{state: markAbsent}
	}
	return mark{state: markPresent, text: text}
}
