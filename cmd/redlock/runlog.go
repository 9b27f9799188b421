//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quorumlock/redlock/lockset"
)

// runLog says what happens to a lock and its command: as JSON lines all of it, else what
// went wrong, and what is waited for.
type runLog struct {
	mu      sync.Mutex
	w       io.Writer
	json    bool
	verbose bool
	keys    []string
}

// MarshalJSON and UnmarshalJSON are for the watchdog, which says in the same way what it did.
func (l *runLog) MarshalJSON() ([]byte, error) {
	return json.Marshal(runLogWire{l.json, l.keys})
}

func (l *runLog) UnmarshalJSON(text []byte) error {
	var w runLogWire
	err := json.Unmarshal(text, &w)
	l.json, l.keys, l.w = w.JSON, w.Keys, os.Stderr
	return err
}

type runLogWire struct {
	JSON bool
	Keys []string
}

// killed is said by the watchdog.
func (l *runLog) killed(why string) {
	l.say(runEvent{Event: "killed", KilledBy: watchdogName, Signal: "SIGKILL", Error: why})
	l.print("%s: the watchdog killed the command: %s", l.name(), why)
}

// runEvent is a JSON line.
type runEvent struct {
	Time   time.Time  `json:"time"`
	Event  string     `json:"event"`
	Key    string     `json:"key,omitempty"`
	Keys   []string   `json:"keys,omitempty"` // where there are several
	Token  string     `json:"token,omitempty"`
	Fence  uint64     `json:"fence,omitempty"`
	Tokens []string   `json:"tokens,omitempty"` // of Keys, in that order
	Fences []uint64   `json:"fences,omitempty"`
	Permit *int       `json:"permit,omitempty"`
	Until  *time.Time `json:"until,omitempty"`
	Waited *float64   `json:"waited_seconds,omitempty"`
	PID    int        `json:"pid,omitempty"`
	// Of the lock that is waited for, as far as it is known.
	Holder      string   `json:"holder,omitempty"`
	HolderToken string   `json:"holder_token,omitempty"` // its beginning: who has all of it can release the lock
	SharedBy    int      `json:"shared_by,omitempty"`    // how many hold it together
	Lease       *float64 `json:"lease_seconds,omitempty"`
	Place       int      `json:"place,omitempty"` // in line, from 1
	Waiting     int      `json:"waiting,omitempty"`

	Signal    string `json:"signal,omitempty"`
	Forwarded *bool  `json:"forwarded,omitempty"`
	KilledBy  string `json:"killed_by,omitempty"` // "redlock" or "lock-watchdog"
	Status    *int   `json:"status,omitempty"`
	Error     string `json:"error,omitempty"`
}

func (l *runLog) say(e runEvent) {
	if !l.json {
		return
	}
	e.Time = time.Now()
	if len(l.keys) == 1 {
		e.Key = l.keys[0]
	} else {
		e.Keys = l.keys
	}
	line, err := json.Marshal(e)
	if err != nil {
		panic(err) // strings, numbers and times
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.w.Write(append(line, '\n')) // at once, for the command writes there, too
}

// name is the keys, for people.
func (l *runLog) name() string { return strings.Join(l.keys, ", ") }

func (l *runLog) acquired(held lockset.Locks, f runFlags, waited time.Duration) {
	e := runEvent{Event: "acquired", Until: new(held.Until()), Waited: new(inSeconds(waited))}
	for _, lock := range held {
		e.Tokens = append(e.Tokens, lock.Token())
		if f.fencing {
			e.Fences = append(e.Fences, lock.Fence())
		}
	}
	if len(held) == 1 {
		e.Token, e.Tokens = e.Tokens[0], nil
		if f.fencing {
			e.Fence, e.Fences = e.Fences[0], nil
		}
	}
	if f.permits > 0 {
		e.Permit = new(held[0].Permit())
	}
	l.say(e)
	l.add("got %s after %v", l.name(), waited.Round(time.Millisecond))
}

// add is for people who want to know all.
func (l *runLog) add(format string, args ...any) {
	if l.verbose {
		l.print(format, args...)
	}
}

func (l *runLog) print(format string, args ...any) {
	if !l.json {
		fmt.Fprintln(l.w, "redlock:", printable(fmt.Sprintf(format, args...)))
	}
}

// kept is said of a lock that is not released. err is why it may end too early.
func (l *runLog) kept(err error, held lockset.Locks) {
	e := runEvent{Event: "kept", Until: new(held.Until())}
	if err != nil {
		e.Error = err.Error()
		l.print("%s may be free before the time of --keep is over: %v", l.name(), strings.TrimPrefix(err.Error(), "redlock: "))
	} else {
		l.add("%s is kept until %s", l.name(), held.Until().Format(time.TimeOnly))
	}
	l.say(e)
}

// releasing is said of a lock whose release too few nodes confirmed.
func (l *runLog) releasing(err error, until time.Time) {
	l.say(runEvent{Event: "releasing", Error: err.Error(), Until: &until})
	l.print("%s; the release is tried again for %v, or until Ctrl-C", inOneLine(err), time.Until(until).Round(time.Second))
}

// inOneLine is an error that may have several lines, as those of several locks.
func inOneLine(err error) string {
	return strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\nredlock: ", "; "), "redlock: ")
}

// released is said of a lock that was released. Nobody gets it before until, if that is in the
// future.
func (l *runLog) released(err error, lease time.Duration, until time.Time) {
	left := time.Until(until).Round(100 * time.Millisecond)
	switch {
	case l.json && err == nil && left > 0:
		l.say(runEvent{Event: "released", Until: &until})
	case l.json && err == nil:
		l.say(runEvent{Event: "released"})
	case l.json:
		l.say(runEvent{Event: "released", Error: err.Error()})
	case err != nil:
		l.print("%s; the lease ends by itself in %v at most", inOneLine(err), max(lease.Round(time.Second), time.Second))
	case left > 0:
		l.add("released %s; nobody gets it for another %v", l.name(), left)
	default:
		l.add("released %s", l.name())
	}
}

// end is what run returns for this status, having said why.
func (l *runLog) end(s *exitStatus) error {
	if s.err != nil && l.json {
		l.say(runEvent{Event: "error", Error: s.err.Error(), Status: &s.code})
		return &exitStatus{code: s.code}
	}
	if s.code == 0 && s.err == nil {
		return nil
	}
	return s
}

func nameOf(s os.Signal) string { return unix.SignalName(s.(syscall.Signal)) }
