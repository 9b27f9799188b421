//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quorumlock/redlock"
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

	dog     *watchdog
	over    bool                      // the lock was lost, and that was said
	beyond  error                     // the lock was lost, and the group cannot be killed
	asked   bool                      // it was sent SIGTERM, since this lease ends
	sent    bool                      // SIGTERM, for this lease or one before, and no other since
	changes <-chan syscall.WaitStatus // of the command itself; nil: it has ended
	ended   syscall.WaitStatus
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

// tellDog tells the watchdog of renewals. It does nothing else, so that they are told whatever
// holds up watch: a pipe for the log that is not read, or a file system.
func (j *job) tellDog(stop <-chan struct{}) {
	look := time.NewTicker(j.lookEvery())
	defer look.Stop()
	for {
		select {
		case <-look.C:
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
	if j.dog, err = startWatchdog(j.log); err != nil {
		return &exitStatus{exitRunFailed, fmt.Errorf("the command's watchdog cannot be started: %w", err)}
	}
	lost, err := j.runWatched(path, command, environment(j.held, f, j.log.mark))
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
	status := j.statusOf(j.ended)
	if j.sent && j.ended.Signaled() && j.ended.Signal() == syscall.SIGTERM {
		return j.lose(fmt.Errorf("%w: the lease was not renewed, and the command ended by SIGTERM, which redlock sent it", redlock.ErrLost), "redlock")
	}
	return status
}

// runWatched returns when the command's group has gone: lost, if we killed it since the lock was
// lost, or err, if the command was not started.
func (j *job) runWatched(path string, command, env []string) (lost, err error) {
	// From before the start, so that no command runs on when we are stopped.
	j.stops = make(chan os.Signal, 1)
	signal.Notify(j.stops, syscall.SIGTSTP)
	defer signal.Stop(j.stops)
	// The signal at our death, where there is one, is sent at the death of the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	j.tty = openTerminal()
	defer j.tty.close()
	adoptOrphans()
	if j.group, err = startUnder(j.dog, j.lease, path, command, env); err != nil {
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
	j.changes = waitFor(j.group)
	return j.watch(), nil
}

// waitFor tells when the command stops, and last how it ended. Package os does not tell of stops. It
// waits for whatever is ours: orphans of the command are, too, and a dead one that is not waited for
// stays in the group. It returns when no child is left, the watchdog included.
func waitFor(pid int) <-chan syscall.WaitStatus {
	changes := make(chan syscall.WaitStatus)
	go func() {
		for {
			var s syscall.WaitStatus
			child, err := syscall.Wait4(-1, &s, syscall.WUNTRACED, nil)
			switch {
			case errors.Is(err, syscall.EINTR):
			case err != nil:
				return
			case child == pid:
				changes <- s
			}
		}
	}()
	return changes
}

// watch returns when the command has ended and its group has gone. It says why the lock was
// lost if it was, after killing the group.
func (j *job) watch() (lost error) {
	look := time.NewTicker(j.lookEvery())
	defer look.Stop()
	lease, done := j.held.Within(context.Background())
	defer done()
	over := lease.Done()
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
			if j.stopped(s) {
				j.stoppedBy(s.StopSignal())
			}
		case <-over:
			over = nil
		case <-look.C:
		}
		if j.gone() {
			return lost
		}
		// A lock that a majority of nodes says is gone has no validity left.
		switch left := j.held.Validity(); {
		case left <= j.killBefore():
			if lost == nil {
				lost = lostBy(j.held)
			}
			if lost == nil {
				lost = fmt.Errorf("%w: the lease was not renewed, and ends in %v", redlock.ErrLost, left.Round(time.Millisecond))
			}
			if errors.Is(j.kill(syscall.SIGKILL), syscall.EPERM) && j.beyond == nil {
				j.beyond = because("the command cannot be killed: it runs as another user: ", lost)
				j.lose(j.beyond, "")
				j.log.print("%v", j.beyond)
			}
			// Dead processes may stay in the group until their parents look; we go on looking.
			_ = j.dog.standDown()
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

// gone reports whether nothing of the command is left.
func (j *job) gone() bool {
	if j.changes != nil || !j.empty && !errors.Is(syscall.Kill(-j.group, 0), syscall.ESRCH) {
		return false
	}
	left := j.log.mark.outside(noGroup, 0)
	if !j.empty {
		j.empty = true // from now on its number may be another's
		if j.ended.Signaled() {
			j.tty.restoreModes()
		}
		j.tty.takeBack(j.group)
		if left && j.held.Validity() > j.killBefore() {
			until, end := j.lease()
			j.dog.watch(noGroup, until, end)
		}
	}
	return !left
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

// kill sends a signal to the group and what left it. EPERM: all that is left in the group runs as another user.
func (j *job) kill(s syscall.Signal) error {
	defer j.log.mark.outside(j.group, s)
	if j.empty {
		return nil
	}
	return syscall.Kill(-j.group, s)
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
