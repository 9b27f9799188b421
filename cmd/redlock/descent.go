//go:build unix

package main

import (
	"errors"
	"fmt"
	"syscall"
	"time"
)

// A command is ended by descent. Whatever it starts descends from the watchdog, which is its parent and adopts
// orphans: a process can leave its group, its session, its user and its environment, and not this. If the watchdog
// is killed all of it comes to redlock, which adopts orphans, too.

// proc is a process as it was looked at.
type proc struct {
	pid, parent, group, session int
	start                       int // in ticks of the kernel; with pid it is of this process alone
	name                        string
	alive                       bool
	inner                       bool // under the watchdog of another run
}

// descent is what descends from this process, or from another one that adopts orphans.
type descent struct {
	root int
	// since is what start the children of root have at least; others had their parent before the command.
	since int
	older bool // there may be such others
	group int  // of the command: all that is known of it where processes cannot be looked at
}

// anySession is none. 0 is one, whose leader is outside of the container.
const anySession = -1

// dyingTime is how long what was sent SIGKILL may take to die before that is said.
const dyingTime = 2 * time.Second

// end returns when nothing is left of a descent of this process. All of it is stopped before any of it is killed, so
// that nothing does its next step because what it waits for is dead. say is told once what cannot be killed, if
// anything cannot.
func (d descent) end(say func(why string)) {
	stopped := round{descent: d, signal: syscall.SIGSTOP}
	for range 100 { // what loops forever is at the latest met by SIGKILL
		if stopped.all(); !stopped.fresh {
			break
		}
	}
	var (
		killed = round{descent: d, signal: syscall.SIGKILL}
		begun  = time.Now()
		told   = false
		pause  = time.Millisecond
	)
	for empty := 0; ; {
		killed.all()
		if empty++; killed.left > 0 {
			empty = 0
		}
		switch {
		case empty > 0 && childless(), d.older && empty > 50:
			return
		case killed.fresh:
			begun, pause = time.Now(), time.Millisecond
			continue // a loop of forks is as fast as we are
		case !told && (killed.refused != "" || time.Since(begun) > dyingTime):
			told = true
			say(killed.why())
		}
		time.Sleep(pause)
		if empty == 0 {
			pause = min(2*pause, time.Second)
		}
	}
}

// round sends a signal to all that is there, again and again.
type round struct {
	descent
	signal syscall.Signal
	met    map[[2]int]bool // by number and start, and whether it was sent the signal

	fresh   bool   // there was one that had not been met
	left    int    // how many there are
	refused string // which one may not be sent the signal
	last    string // one that is left
}

func (r *round) all() {
	r.fresh, r.left, r.refused, r.last = false, 0, "", ""
	if r.met == nil {
		r.met = map[[2]int]bool{}
	}
	found, looked := r.living(anySession)
	if !looked {
		r.toGroup()
		return
	}
	r.near()
	for _, p := range found {
		r.left++
		sent := r.send(p)
		if r.last = fmt.Sprintf("process %d (%s)", p.pid, p.name); !sent {
			r.refused = r.last
		}
	}
}

// send reports whether a process was sent the signal, now or before.
func (r *round) send(p proc) (sent bool) {
	id := [2]int{p.pid, p.start}
	sent, met := r.met[id]
	r.fresh = r.fresh || !met
	if !sent {
		sent = !errors.Is(p.signal(r.signal), syscall.EPERM)
		r.met[id] = sent
	}
	return sent
}

// near is for a loop of forks that each end when they have forked: by the time that all of /proc was read, others
// go on. What lost its parent is our child, and there is a list of these.
func (r *round) near() {
	met := map[int]bool{}
	for range 1000 {
		before := len(met)
		r.children(met, func(p proc) {
			r.send(p)
			met[p.pid] = true
		})
		if len(met) == before {
			return
		}
	}
}

func (r *round) toGroup() {
	if r.group == 0 {
		return
	}
	switch err := syscall.Kill(-r.group, r.signal); {
	case errors.Is(err, syscall.ESRCH):
		r.group = 0 // it may be another's from now on
	case errors.Is(err, syscall.EPERM):
		r.left, r.refused = 1, "it"
	default:
		r.left, r.last = 1, "it"
	}
}

func (r *round) why() string {
	switch {
	case r.refused != "":
		return r.refused + " runs as another user"
	case r.last != "":
		return r.last + " does not die"
	default:
		return "what is left of it cannot be seen"
	}
}
