//go:build unix

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/lockset"
)

// job is the command while it runs.
type job struct {
	held    lockset.Locks
	ttl     time.Duration
	signals <-chan os.Signal
	stops   chan os.Signal // SIGTSTP for us, when the terminal is ours
	log     *runLog
	group   int
	empty   bool      // the group; what left it goes on
	tty     *terminal // nil: none
	// notBefore is when others may get the lock at the earliest, with --min-hold.
	notBefore time.Time
	nodes     *admin.Nodes  // to see whether a release has got through
	patience  time.Duration // with it

	dog     *watchdog
	over    bool                      // the lock was lost, and that was said
	beyond  error                     // the lock was lost, and not all of the command can be killed
	asked   bool                      // it was sent SIGTERM, since this lease ends
	sent    bool                      // SIGTERM, for this lease or one before, and no other since
	changes <-chan syscall.WaitStatus // of the command itself; nil: it has ended
	ended   syscall.WaitStatus
	missed  time.Time // when it was first missed, without a word of its end
	unknown bool      // how it ended
}

// killBefore is how long before the end of the lease the group is killed, so that it is
// gone when another may get the lock.
func (j *job) killBefore() time.Duration {
	return min(max(j.ttl/10, 100*time.Millisecond), 2*time.Second)
}

// lease is the end of the lease, and when the watchdog is to kill the group by bootTime: before
// that end, and after we would have done it.
func (j *job) lease() (until time.Time, kill time.Duration) {
	now := bootTime() // first, so that a pause between the two makes it too early
	return j.held.Until(), now + j.held.Validity() - j.killBefore()/2
}

// lookEvery is how often it is seen that the lease was renewed, or was not.
func (j *job) lookEvery() time.Duration { return min(j.ttl/50, 50*time.Millisecond) }

// tellDog tells the watchdog of renewals and of the loss of the lock. It does nothing else, so that they are told
// whatever holds up watch: a pipe for the log that is not read, or a file system.
func (j *job) tellDog(stop <-chan struct{}) {
	look := time.NewTicker(j.lookEvery())
	defer look.Stop()
	for {
		select {
		case <-look.C:
			if j.held.Validity() <= j.killBefore() {
				j.dog.endCommand(j.killBefore() / 2)
				return
			}
			j.dog.tell(j.lease())
		case <-stop:
			return
		}
	}
}

func (j *job) run(path string, command []string, f runFlags) *exitStatus {
	if j.held.Validity() <= j.killBefore() {
		return j.lose(errTooLate, "")
	}
	var err error
	makeThreads()
	adoptOrphans()
	if j.dog, err = startWatchdog(j.log, path, command, environment(j.held, f)); err != nil {
		return &exitStatus{exitRunFailed, fmt.Errorf("the command's watchdog cannot be started: %w", err)}
	}
	lost, err := j.runWatched(path)
	killed := j.dog.dismiss()
	switch {
	case j.beyond != nil:
		return &exitStatus{exitLost, j.beyond}
	case errors.Is(err, errTooLate):
		return j.lose(err, "")
	case errors.Is(err, os.ErrNotExist):
		return &exitStatus{exitNotFound, err}
	case errors.As(err, new(notExecuted)):
		return &exitStatus{exitCannotExec, err}
	case err != nil:
		return &exitStatus{exitRunFailed, err}
	case killed:
		return j.lose(because("the watchdog killed the command: ", fmt.Errorf("%w: the lease ended while redlock was stopped, or too slow to end the command", redlock.ErrLost)), watchdogName)
	case lost != nil:
		return j.lose(because("the command was killed: ", lost), "redlock")
	}
	if j.unknown {
		return &exitStatus{exitRunFailed, errors.New("the watchdog was killed, and with it went how the command ended")}
	}
	status := j.statusOf(j.ended)
	if j.sent && j.ended.Signaled() && j.ended.Signal() == syscall.SIGTERM {
		return j.lose(fmt.Errorf("%w: the lease was not renewed, and the command ended by SIGTERM, which redlock sent it", redlock.ErrLost), "redlock")
	}
	return status
}

// runWatched returns when the command's group has gone; or lost, when all that it started was killed since the lock
// was lost; or err, if the command was not started.
func (j *job) runWatched(path string) (lost, err error) {
	// From before the start, so that no command runs on when we are stopped.
	j.stops = make(chan os.Signal, 1)
	signal.Notify(j.stops, syscall.SIGTSTP)
	defer signal.Stop(j.stops)
	j.tty = openTerminal()
	defer j.tty.close()
	if j.group, err = j.dog.start(j.lease, path); err != nil {
		return nil, err
	}
	var telling sync.WaitGroup
	stop := make(chan struct{})
	telling.Go(func() { j.tellDog(stop) })
	defer telling.Wait()
	defer close(stop)
	// Only now, so that the command does not ignore it, too. Until it has the terminal it is in
	// the background, and stopped if it minds; see stopped.
	signal.Ignore(syscall.SIGTTOU)
	j.tty.handOver(j.group)
	j.log.say(runEvent{Event: "started", PID: j.group})
	j.changes = j.dog.changes
	return j.watch(), nil
}

// watch returns when the command has ended and its group has gone. It says why the lock was lost if it was, after
// nothing is left of what the command started.
func (j *job) watch() (lost error) {
	look := time.NewTicker(j.lookEvery())
	defer look.Stop()
	lease, done := j.held.Within(context.Background())
	defer done()
	over, died, none := lease.Done(), j.dog.died, j.dog.none
	for {
		if !j.empty {
			j.tty.handOver(j.group)
		}
		select {
		case s := <-j.signals:
			j.forward(s.(syscall.Signal))
			continue
		case <-j.stops:
			j.stop()
		case s := <-j.changes:
			if j.stopped(s) && lost == nil {
				j.stoppedBy(s.StopSignal())
			}
		case <-over:
			over = nil
		case <-died:
			died = nil
			if lost != nil || j.dog.ends.Load() {
				none = j.takeOver()
				break
			}
			const what = "the watchdog died: if redlock is killed or stopped, the command goes on"
			j.log.say(runEvent{Event: "unguarded", Error: what})
			j.log.print("%s", what)
		case why := <-j.dog.left:
			j.beyond = because("the command cannot be killed: "+why+": ", cmp.Or(lost, redlock.ErrLost))
			j.lose(j.beyond, "")
			j.log.print("%v", j.beyond)
		case <-none:
			j.leave()
			return cmp.Or(lost, j.loss())
		case <-look.C:
		}
		if lost == nil && !j.dog.ends.Load() && j.gone() {
			return nil
		}
		// A lock that a majority of nodes says is gone has no validity left.
		switch left := j.held.Validity(); {
		case lost != nil:
		case left <= j.killBefore():
			lost = j.loss()
			if died == nil {
				none = j.takeOver()
			} else {
				j.dog.endCommand(j.killBefore() / 2)
			}
		case left > j.ttl/3:
			j.asked = false
		case !j.asked:
			j.asked, j.sent = true, true
			why := fmt.Sprintf("was not renewed, and ends in %v", left.Round(time.Millisecond))
			j.log.say(runEvent{Event: "signal", Signal: "SIGTERM", Error: "the lease " + why})
			j.log.print("the lease of %s %s: the command gets SIGTERM", j.log.name(), why)
			j.kill(syscall.SIGTERM)
			j.kill(syscall.SIGCONT) // or else a stopped one would not hear of it
		}
	}
}

// loss is why the command is ended.
func (j *job) loss() error {
	if lost := lostBy(j.held); lost != nil {
		return lost
	}
	return fmt.Errorf("%w: the lease was not renewed, and ends in %v", redlock.ErrLost, j.held.Validity().Round(time.Millisecond))
}

// takeOver ends the command in place of a watchdog that is dead; what it tells is closed when nothing is left.
func (j *job) takeOver() chan struct{} {
	none := make(chan struct{})
	all := j.dog.descent()
	go func() {
		defer close(none)
		all.end(func(why string) { j.dog.left <- why })
	}()
	return none
}

// gone reports whether nothing of the command is left but daemons.
func (j *job) gone() bool {
	if j.changes != nil && !j.vanished() || !j.empty && !errors.Is(syscall.Kill(-j.group, 0), syscall.ESRCH) {
		return false
	}
	j.leave()
	session, err := unix.Getsid(0)
	return len(j.others()) == 0 && (err != nil || !j.dog.descent().forksOn(session))
}

// leave is for the end of the group.
func (j *job) leave() {
	if j.empty {
		return
	}
	j.empty = true // from now on its number may be another's
	if j.ended.Signaled() {
		j.tty.restoreModes()
	}
	j.tty.takeBack(j.group)
}

// vanished reports whether the command has ended and it will not be known how: the watchdog was killed when it knew
// and had not told, or where orphans are not ours.
func (j *job) vanished() bool {
	if !j.dog.dead() || !errors.Is(syscall.Kill(j.group, 0), syscall.ESRCH) {
		j.missed = time.Time{}
		return false
	}
	if j.missed.IsZero() {
		j.missed = time.Now()
	}
	if time.Since(j.missed) < time.Second { // it may be about to be told
		return false
	}
	j.changes, j.unknown = nil, true
	return true
}

// others are processes of the command that left its group and stayed in the session, as those of timeout. What
// runs under the watchdog of a run within this one is that run's.
func (j *job) others() (found []proc) {
	session, err := unix.Getsid(0)
	if err != nil {
		return nil
	}
	all, _ := j.dog.descent().living(session)
	return slices.DeleteFunc(all, func(p proc) bool { return p.inner || !j.empty && p.group == j.group })
}

// stopped notes what is told of the command, and reports whether it was stopped.
func (j *job) stopped(s syscall.WaitStatus) bool {
	if !s.Stopped() {
		j.ended, j.changes = s, nil
	}
	return s.Stopped()
}

// forward passes on a signal that we got.
func (j *job) forward(s syscall.Signal) {
	j.kill(s)
	j.sent = j.sent && s != syscall.SIGTERM
	if ends(s) {
		j.log.say(runEvent{Event: "signal", Signal: nameOf(s), Forwarded: new(true)})
	}
	if s == syscall.SIGTERM || s == syscall.SIGHUP {
		j.kill(syscall.SIGCONT) // a stopped one would not hear of it
	}
}

// stoppedBy decides what becomes of a command that was stopped.
func (j *job) stoppedBy(by syscall.Signal) {
	wants := by == syscall.SIGTTIN || by == syscall.SIGTTOU
	switch {
	case j.tty == nil:
		// Somebody's business who will continue it. The lease goes on.
	case wants && j.tty.wanted(j.group):
		j.kill(syscall.SIGCONT)
	case by == syscall.SIGSTOP && !j.tty.gave:
	default:
		j.suspend(true)
	}
}

// stop is for the signal that stops jobs, sent to us.
func (j *job) stop() {
	if canBeContinued() && j.changes != nil {
		j.kill(syscall.SIGSTOP)
		// When we are continued, what we do to it here must not look like another stop. One
		// that had been stopped before says nothing.
		select {
		case s := <-j.changes:
			j.stopped(s)
		case <-time.After(time.Second):
		}
	}
	j.suspend(false)
}

// suspend stops the group and ourselves with it, as a shell expects of a job: nobody may run
// under a lease that is not renewed. It returns when we are continued.
func (j *job) suspend(all bool) {
	if !canBeContinued() {
		// As the terminal does where there is no shell to continue the job.
		j.kill(syscall.SIGCONT)
		return
	}
	j.kill(syscall.SIGSTOP)
	j.tty.takeBack(j.group)
	j.log.say(runEvent{Event: "suspended"})
	signal.Ignore(syscall.SIGTSTP)
	if all {
		_ = syscall.Kill(0, syscall.SIGTSTP) // the rest of a pipeline; the terminal told only the group
	}
	stopSelf()
	signal.Notify(j.stops, syscall.SIGTSTP)

	// Before anything goes on a majority is asked whether the lock is still ours. One that does not answer
	// leaves what is left of the lease.
	ctx, cancel := context.WithTimeout(context.Background(), j.killBefore())
	defer cancel()
	err := j.held.Extend(ctx, j.ttl)
	if errors.Is(err, redlock.ErrLost) || j.held.Validity() <= j.killBefore() {
		return // and watch kills it, stopped as it is
	}
	j.dog.tell(j.lease()) // or it kills what goes on now
	j.log.say(runEvent{Event: "resumed"})
	j.tty.handOver(j.group)
	j.kill(syscall.SIGCONT)
}

// kill sends a signal to the group and what left it.
func (j *job) kill(s syscall.Signal) {
	others := j.others()
	if !j.empty {
		_ = syscall.Kill(-j.group, s)
	}
	for _, p := range others {
		if p.name != watchdogName { // of a run within this one
			_ = p.signal(s)
		}
	}
}

// lose says that the lock was lost, and what killed the command, if anything did.
func (j *job) lose(err error, by string) *exitStatus {
	j.over = true
	j.log.say(runEvent{Event: "lost", Error: err.Error(), KilledBy: by})
	return &exitStatus{exitLost, err}
}

// statusOf is a command's end as an exit status.
func (j *job) statusOf(s syscall.WaitStatus) *exitStatus {
	code := s.ExitStatus()
	e := runEvent{Event: "exit", Status: &code}
	if s.Signaled() {
		code = 128 + int(s.Signal())
		e.Signal = nameOf(s.Signal())
	}
	j.log.say(e)
	return &exitStatus{code: code}
}

// canBeContinued reports whether there is a shell that continues us when we stop: our process
// group is none of its session's first, and our parent is of our session.
func canBeContinued() bool {
	session, err := unix.Getsid(0)
	if err != nil || session == unix.Getpgrp() {
		return false
	}
	parents, err := unix.Getsid(unix.Getppid())
	return err == nil && parents == session
}
