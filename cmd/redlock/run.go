//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/quorumlock/redlock"
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

func (e *exitStatus) Error() string {
	if e.err == nil {
		return "exit status " + strconv.Itoa(e.code)
	}
	return e.err.Error()
}

type runFlags struct {
	nonblock bool
	wait     time.Duration
	ttl      time.Duration
	fencing  bool
	busy     int
}

func runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run KEY [flags] -- COMMAND [ARGUMENT...]",
		Short: "Hold a lock while a command runs",
		Long: `Hold a lock while a command runs.

It waits in line for the lock, runs the command in a process group of its own, and renews the
lease until the whole group has gone; then it releases. Signals go to that group.
Standard input and output are the command's.

If the lease cannot be renewed, the group gets SIGTERM when a third of the TTL is left, and
SIGKILL before another can get the lock. A process that leaves the group, as daemons do, is
neither waited for nor killed.

The command finds REDLOCK_KEY, REDLOCK_TOKEN and, with --fencing, REDLOCK_FENCE in its
environment.

Exit status: the command's, or 128 and the number of the signal that ended it, or that
came while waiting. Otherwise
    2  the command line breaks a rule
  120  the lock is held by another (--nonblock, --timeout); -E sets another number
  121  no majority of nodes could be asked in time
  122  the lock was lost while the command ran, which was killed
  123  anything else that went wrong
  126  the command cannot be executed
  127  there is no such command`,
		Example: `  redlock run nightly-report --nonblock -- ./report.sh
  redlock run migrate --timeout 5m --ttl 30s -- ./migrate up
  redlock run orders --fencing -- sh -c 'echo token $REDLOCK_FENCE'`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if dash := cmd.ArgsLenAtDash(); dash != 1 || len(args) < 2 {
			return &usageError{errors.New("run takes one key, then --, then the command: redlock run KEY -- COMMAND")}
		}
		return nil
	}
	s := connectFlags(cmd)
	fl := cmd.Flags()
	fl.BoolVarP(&f.nonblock, "nonblock", "n", false, "do not wait if the lock is held")
	fl.DurationVarP(&f.wait, "timeout", "w", 0, "wait no longer than this; 0 for as long as it takes")
	fl.DurationVar(&f.ttl, "ttl", 10*time.Second, "the lease, from 1s to 24h; it is renewed at a third of it")
	fl.BoolVar(&f.fencing, "fencing", false, "get a fencing token")
	fl.IntVarP(&f.busy, "conflict-exit-code", "E", exitBusy, "exit `status` if the lock is held, from 0 to 255")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case f.nonblock && f.wait != 0:
			return &usageError{errors.New("--nonblock and --timeout exclude each other")}
		case f.wait < 0:
			return &usageError{fmt.Errorf("--timeout is %v: must not be negative", f.wait)}
		case f.ttl < time.Second || f.ttl > 24*time.Hour:
			return &usageError{fmt.Errorf("--ttl is %v: must be from 1s to 24h", f.ttl)}
		case f.busy < 0 || f.busy > 255:
			return &usageError{fmt.Errorf("-E is %d: must be from 0 to 255", f.busy)}
		}
		return runUnderLock(cmd, s, f, args[0], args[1:])
	}
	return cmd
}

// forwarded are the signals that the command gets. Those that stop and continue a job
// are the terminal's business with the group.
var forwarded = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
	syscall.SIGWINCH, syscall.SIGCONT, syscall.SIGALRM,
}

// ends reports whether a signal ends those who do not handle it.
func ends(s os.Signal) bool { return s != syscall.SIGWINCH && s != syscall.SIGCONT }

func runUnderLock(cmd *cobra.Command, s settings, f runFlags, key string, command []string) error {
	path, err := exec.LookPath(command[0])
	switch {
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist):
		return &exitStatus{exitNotFound, err}
	case err != nil:
		return &exitStatus{exitCannotExec, err}
	}
	signals := make(chan os.Signal, 32)
	signal.Notify(signals, forwarded...)
	defer signal.Stop(signals)

	// The program's own context ends with the first interrupt, which here is the
	// command's to handle.
	ctx := context.WithoutCancel(cmd.Context())
	rl, err := s.open(ctx, f.ttl)
	if err != nil {
		return failedToLock(err, f)
	}
	defer rl.Close()
	lock, sig, err := waitForLock(ctx, rl, f, key, signals)
	switch {
	case sig != nil:
		return &exitStatus{code: 128 + int(sig.(syscall.Signal))}
	case err != nil:
		return failedToLock(err, f)
	}
	j := &job{lock: lock, ttl: f.ttl, signals: signals}
	status := j.run(cmd, path, command, f)
	if err := lock.Release(ctx); err != nil && status.code != exitLost {
		fmt.Fprintf(cmd.ErrOrStderr(), "redlock: %v; the lease ends by itself in %v at most\n", err, f.ttl)
	}
	if status.code == 0 && status.err == nil {
		return nil
	}
	return status
}

func failedToLock(err error, f runFlags) error {
	usage := (*usageError)(nil)
	switch {
	case errors.As(err, &usage):
		return err
	case errors.Is(err, redlock.ErrHeld):
		return &exitStatus{f.busy, err}
	case errors.Is(err, redlock.ErrNoQuorum), errors.Is(err, redlock.ErrExpired):
		return &exitStatus{exitNoQuorum, err}
	default:
		return &exitStatus{exitRunFailed, err}
	}
}

// waitForLock returns the lock, or the signal that came first. A signal that comes with
// the grant counts: no command is started during a shutdown.
func waitForLock(ctx context.Context, rl *redlock.Redlock, f runFlags, key string, signals <-chan os.Signal) (*redlock.Lock, os.Signal, error) {
	opts := []redlock.LockOption{redlock.WithRenewal()}
	if f.fencing {
		opts = append(opts, redlock.WithFencing())
	}
	m := rl.Mutex(key, opts...)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if f.wait > 0 {
		ctx, cancel = context.WithTimeout(ctx, f.wait)
		defer cancel()
	}
	type result struct {
		lock *redlock.Lock
		err  error
	}
	done := make(chan result, 1)
	go func() {
		acquire := m.Acquire
		if f.nonblock {
			acquire = m.TryAcquire
		}
		lock, err := acquire(ctx)
		done <- result{lock, err}
	}()
	var came os.Signal
	var r result
	for waiting := true; waiting; {
		select {
		case s := <-signals:
			if came == nil && ends(s) {
				came = s
				cancel()
			}
		case r = <-done:
			waiting = false
		}
	}
	for came == nil {
		select {
		case s := <-signals:
			if ends(s) {
				came = s
			}
			continue
		default:
		}
		break
	}
	if came != nil && r.lock != nil {
		_ = r.lock.Release(ctx)
		r.lock = nil
	}
	return r.lock, came, r.err
}

// job is the command while it runs.
type job struct {
	lock    *redlock.Lock
	ttl     time.Duration
	signals <-chan os.Signal
	group   int
}

// killBefore is how long before the end of the lease the group is killed, so that it is
// gone when another may get the lock.
func (j *job) killBefore() time.Duration {
	return min(max(j.ttl/10, 100*time.Millisecond), 2*time.Second)
}

func (j *job) run(cmd *cobra.Command, path string, command []string, f runFlags) *exitStatus {
	child := exec.Command(path, command[1:]...)
	child.Args[0] = command[0]
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, cmd.OutOrStdout(), cmd.ErrOrStderr()
	child.Env = append(os.Environ(), "REDLOCK_KEY="+j.lock.Key(), "REDLOCK_TOKEN="+j.lock.Token())
	if f.fencing {
		child.Env = append(child.Env, "REDLOCK_FENCE="+strconv.FormatUint(j.lock.Fence(), 10))
	}
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// In a terminal, the group has to be the one that may read it and that its keys
	// interrupt, as a shell does it for its jobs.
	terminal := isatty.IsTerminal(os.Stdin.Fd())
	if terminal {
		child.SysProcAttr.Foreground, child.SysProcAttr.Ctty = true, int(os.Stdin.Fd())
		signal.Ignore(syscall.SIGTTOU)
		defer func() {
			_ = unix.IoctlSetPointerInt(int(os.Stdin.Fd()), unix.TIOCSPGRP, unix.Getpgrp())
			signal.Reset(syscall.SIGTTOU)
		}()
	}
	if err := child.Start(); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return &exitStatus{exitNotFound, err}
		}
		return &exitStatus{exitCannotExec, err}
	}
	j.group = child.Process.Pid
	exited := make(chan error, 1)
	go func() { exited <- child.Wait() }()
	err, lost := j.watch(exited)
	if lost != nil {
		return &exitStatus{exitLost, lost}
	}
	return statusOf(err)
}

// watch returns the command's end when its group has gone, and why the lock was lost if
// it was, after killing the group.
func (j *job) watch(exited <-chan error) (err, lost error) {
	look := time.NewTicker(min(j.ttl/50, 50*time.Millisecond))
	defer look.Stop()
	over, termed, gone := j.lock.Context().Done(), false, false
	for {
		select {
		case s := <-j.signals:
			j.kill(s.(syscall.Signal))
			continue
		case err = <-exited:
			gone = true
			exited = nil
		case <-over:
			over = nil
		case <-look.C:
		}
		if gone && j.kill(0) != nil {
			return err, lost
		}
		switch left := j.lock.Validity(); {
		case left <= j.killBefore():
			if lost == nil {
				lost = context.Cause(j.lock.Context())
			}
			if lost == nil {
				lost = fmt.Errorf("%w: the lease was not renewed, and ends in %v", redlock.ErrLost, left.Round(time.Millisecond))
			}
			j.kill(syscall.SIGKILL)
		case left <= j.ttl/3 && !termed:
			termed = true
			j.kill(syscall.SIGTERM)
			j.kill(syscall.SIGCONT) // or else a stopped one would not hear of it
		}
	}
}

// kill sends a signal to the group; it fails when nobody is left in it.
func (j *job) kill(s syscall.Signal) error { return syscall.Kill(-j.group, s) }

// statusOf is a command's end as an exit status.
func statusOf(err error) *exitStatus {
	failed := (*exec.ExitError)(nil)
	switch {
	case err == nil:
		return &exitStatus{}
	case errors.As(err, &failed):
		if ws, ok := failed.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return &exitStatus{code: 128 + int(ws.Signal())}
		}
		return &exitStatus{code: failed.ExitCode()}
	default:
		return &exitStatus{exitRunFailed, err}
	}
}
