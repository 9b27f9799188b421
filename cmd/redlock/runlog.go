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

	"github.com/quorumlock/redlock"
)

// runLog says what happens to a lock and its command: as JSON lines all of it, else what
// went wrong, and what is waited for.
type runLog struct {
	mu      sync.Mutex
	w       io.Writer
	json    bool
	verbose bool
	key     string
}

// runEvent is a JSON line.
type runEvent struct {
	Time   time.Time  `json:"time"`
	Event  string     `json:"event"`
	Key    string     `json:"key"`
	Token  string     `json:"token,omitempty"`
	Fence  uint64     `json:"fence,omitempty"`
	Until  *time.Time `json:"until,omitempty"`
	Waited *float64   `json:"waited_seconds,omitempty"`
	PID    int        `json:"pid,omitempty"`
	// Of the lock that is waited for, as far as it is known.
	Holder      string   `json:"holder,omitempty"`
	HolderToken string   `json:"holder_token,omitempty"`
	Lease       *float64 `json:"lease_seconds,omitempty"`
	Place       int      `json:"place,omitempty"` // in line, from 1
	Waiting     int      `json:"waiting,omitempty"`

	Signal    string `json:"signal,omitempty"`
	Forwarded *bool  `json:"forwarded,omitempty"`
	Status    *int   `json:"status,omitempty"`
	Error     string `json:"error,omitempty"`
}

func (l *runLog) say(e runEvent) {
	if !l.json {
		return
	}
	e.Time, e.Key = time.Now(), l.key
	line, err := json.Marshal(e)
	if err != nil {
		panic(err) // strings, numbers and times
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.w.Write(append(line, '\n')) // at once, for the command writes there, too
}

func (l *runLog) acquired(lock *redlock.Lock, f runFlags, waited time.Duration) {
	e := runEvent{Event: "acquired", Token: lock.Token(), Until: new(lock.Until()), Waited: new(waited.Seconds())}
	if f.fencing {
		e.Fence = lock.Fence()
	}
	l.say(e)
	l.add("got %s after %v", l.key, waited.Round(time.Millisecond))
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
func (l *runLog) kept(err error, lock *redlock.Lock) {
	e := runEvent{Event: "kept", Until: new(lock.Until())}
	if err != nil {
		e.Error = err.Error()
		l.print("%s may be free before the time of --keep is over: %v", l.key, strings.TrimPrefix(err.Error(), "redlock: "))
	} else {
		l.add("%s is kept until %s", l.key, lock.Until().Format(time.TimeOnly))
	}
	l.say(e)
}

func (l *runLog) released(err error, ttl time.Duration) {
	switch {
	case l.json && err == nil:
		l.say(runEvent{Event: "released"})
	case l.json:
		l.say(runEvent{Event: "released", Error: err.Error()})
	case err != nil:
		fmt.Fprintf(l.w, "redlock: %s; the lease ends by itself in %v at most\n", strings.TrimPrefix(err.Error(), "redlock: "), ttl)
	default:
		l.add("released %s", l.key)
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
