//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorumlock/redlock"
)

type runFlags struct {
	nonblock bool
	wait     time.Duration
	ttl      time.Duration
	keep     time.Duration
	fencing  bool
	busy     int
	json     bool
	verbose  bool
}

func runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run KEY [flags] [-- COMMAND [ARGUMENT...]]",
		Short: "Hold a lock while a command runs",
		Long: `Hold a lock while a command runs.

It waits in line for the lock, runs the command in a process group of its own, and renews the
lease until the whole group has gone; then it releases. Signals go to that group.
Standard input and output are the command's. On a terminal it says after a second what it
waits for; elsewhere it does with --verbose, and for programs with --json.

Without a command it holds the lock until Ctrl-C, or another signal that ends programs.

With --keep the lock stays for that long after the command has ended, for a job that many
machines start and one shall run. No process is needed for that: the lease lasts as long.

If the lease cannot be renewed, the group gets SIGTERM when a third of the TTL is left, and
SIGKILL before another can get the lock. It gets SIGKILL, too, when redlock itself is killed:
a second process, "lock-watchdog", sees to that. A process that leaves the group, as daemons
do, is neither waited for nor killed.

The command finds REDLOCK_KEY, REDLOCK_TOKEN and, with --fencing, REDLOCK_FENCE in its
environment, besides all that is in ours: REDLOCK_ADDRS, too, with the passwords in it. To
keep these from the command, give them in the file of --config.

Exit status: the command's, or 128 and the number of the signal that ended it, or that
came while waiting. Otherwise
    0  without a command: a signal ended it
    2  the command line breaks a rule
  120  another holds the lock (--nonblock, --timeout); -E sets another number
  121  no majority of nodes could be asked in time
  122  the lock was lost while the command ran, which was killed
  123  anything else that went wrong
  126  the command cannot be executed
  127  there is no such command`,
		Example: `  redlock run prune --nonblock -- ./prune.sh     # every minute, on each machine
  redlock run migrate --timeout 5m --ttl 30s -- ./migrate up
  redlock run report --timeout 10s --keep 5m -- ./report.sh    # once, on one of many machines
  redlock run maintenance                         # nobody else has it until Ctrl-C
  redlock run orders --fencing -- sh -c 'echo token $REDLOCK_FENCE'`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		dash := cmd.ArgsLenAtDash()
		if len(args) == 1 && dash < 0 || len(args) > 1 && dash == 1 {
			return nil
		}
		return &usageError{errors.New("run takes one key, and with a command --, then the command: redlock run KEY -- COMMAND")}
	}
	s := connectFlags(cmd)
	fl := cmd.Flags()
	fl.BoolVarP(&f.nonblock, "nonblock", "n", false, "do not wait; of several that ask at once one gets the lock, nearly always")
	fl.DurationVarP(&f.wait, "timeout", "w", 0, "wait no longer than this; 0 for as long as it takes")
	fl.DurationVar(&f.ttl, "ttl", 10*time.Second, "the lease, from 1s to 24h; it is renewed at a third of it")
	fl.DurationVar(&f.keep, "keep", 0, "keep the lock for this long after the command, from 1s to 24h; it is the lease, too")
	fl.BoolVar(&f.fencing, "fencing", false, "get a fencing token")
	fl.IntVarP(&f.busy, "conflict-exit-code", "E", exitBusy, "exit `status` if the lock is held, from 0 to 255")
	fl.BoolVar(&f.json, "json", false, "say on standard error what happens, one JSON object per line")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "say on standard error what it waits for, and when it has the lock")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case f.nonblock && f.wait != 0:
			return &usageError{errors.New("--nonblock and --timeout exclude each other")}
		case f.wait < 0:
			return &usageError{fmt.Errorf("--timeout is %v: must not be negative", f.wait)}
		case cmd.Flags().Changed("keep") && cmd.Flags().Changed("ttl"):
			return &usageError{errors.New("--keep is the lease, and --ttl would be another")}
		case cmd.Flags().Changed("keep") && (f.keep < time.Second || f.keep > 24*time.Hour):
			return &usageError{fmt.Errorf("--keep is %v: must be from 1s to 24h", f.keep)}
		case f.keep > 0 && len(args) == 1:
			return &usageError{errors.New("--keep is for what comes after a command, and there is none")}
		case f.ttl < time.Second || f.ttl > 24*time.Hour:
			return &usageError{fmt.Errorf("--ttl is %v: must be from 1s to 24h", f.ttl)}
		case f.busy < 0 || f.busy > 255:
			return &usageError{fmt.Errorf("-E is %d: must be from 0 to 255", f.busy)}
		}
		if f.keep > 0 {
			f.ttl = f.keep
		}
		return runUnderLock(cmd, s, f, args[0], args[1:])
	}
	return cmd
}

// forwarded are the signals that the command gets. Those that stop a job are the
// terminal's business with the group, see job.
var forwarded = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
	syscall.SIGWINCH, syscall.SIGCONT, syscall.SIGALRM,
}

// ends reports whether a signal ends those who do not handle it.
func ends(s os.Signal) bool { return s != syscall.SIGWINCH && s != syscall.SIGCONT }

// listen leaves ignored what we were started to ignore, as by nohup or in the background of
// a script, so that the command ignores it, too.
func listen(signals chan<- os.Signal) {
	for _, s := range forwarded {
		if !ignoredAtStart[s] {
			signal.Notify(signals, s)
		}
	}
}

func runUnderLock(cmd *cobra.Command, s settings, f runFlags, key string, command []string) error {
	log := &runLog{w: cmd.ErrOrStderr(), json: f.json, verbose: f.verbose, key: key}
	path := ""
	if len(command) > 0 {
		var err error
		path, err = exec.LookPath(command[0])
		switch {
		case errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist):
			return log.end(&exitStatus{exitNotFound, err})
		case err != nil:
			return log.end(&exitStatus{exitCannotExec, err})
		}
	}
	signals := make(chan os.Signal, 32)
	listen(signals)
	defer signal.Stop(signals)

	// The program's own context ends with the first interrupt, which here is the
	// command's to handle.
	ctx := context.WithoutCancel(cmd.Context())
	rl, lock, sig, err := getLock(ctx, s, f, key, signals, log)
	if rl != nil {
		defer rl.Close()
	}
	switch {
	case sig != nil:
		return &exitStatus{code: 128 + int(sig.(syscall.Signal))}
	case isUsage(err):
		return err
	case err != nil:
		return log.end(failedToLock(err, f))
	}
	j := &job{lock: lock, ttl: f.ttl, signals: signals, log: log}
	if path == "" {
		status := j.hold()
		j.release(ctx, status)
		return log.end(status)
	}
	status := j.run(path, command, f)
	if f.keep > 0 && j.group != 0 && status.code != exitLost {
		log.kept(lock.Extend(ctx, f.keep), lock)
	} else {
		j.release(ctx, status)
	}
	return log.end(status)
}

// release says how it went, unless the lock was lost and a failure is no news.
func (j *job) release(ctx context.Context, status *exitStatus) {
	if err := j.lock.Release(ctx); err == nil || status.code != exitLost {
		j.log.released(err, j.ttl)
	}
}

// hold returns when a signal ends it, or when the lock is lost.
func (j *job) hold() *exitStatus {
	j.log.say(runEvent{Event: "holding"})
	if j.log.onTerminal() != nil {
		j.log.print("holding %s until Ctrl-C", j.lock.Key())
	} else {
		j.log.add("holding %s until a signal", j.lock.Key())
	}
	for {
		select {
		case s := <-j.signals:
			if ends(s) {
				j.log.say(runEvent{Event: "signal", Signal: nameOf(s), Forwarded: new(false)})
				return &exitStatus{}
			}
		case <-j.lock.Context().Done():
			return j.lose(context.Cause(j.lock.Context()))
		}
	}
}

func failedToLock(err error, f runFlags) *exitStatus {
	switch {
	case errors.Is(err, redlock.ErrHeld):
		return &exitStatus{f.busy, err}
	case errors.Is(err, redlock.ErrNoQuorum), errors.Is(err, redlock.ErrExpired):
		return &exitStatus{exitNoQuorum, err}
	default:
		return &exitStatus{exitRunFailed, err}
	}
}

// getLock connects and waits. It returns the lock, or the signal that came first. One that
// comes with the grant counts: no command is started during a shutdown.
func getLock(ctx context.Context, s settings, f runFlags, key string, signals <-chan os.Signal, log *runLog) (*redlock.Redlock, *redlock.Lock, os.Signal, error) {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		rl   *redlock.Redlock
		lock *redlock.Lock
		err  error
	}
	done := make(chan result, 1)
	start := time.Now()
	go func() {
		rl, err := s.open(inner, f.ttl)
		if err != nil {
			done <- result{err: err}
			return
		}
		lock, err := acquire(inner, rl, f, key, log)
		done <- result{rl, lock, err}
	}()
	var came os.Signal
	heard := func(s os.Signal) {
		if came == nil && ends(s) {
			came = s
			log.say(runEvent{Event: "signal", Signal: nameOf(s), Forwarded: new(false)})
			cancel()
		}
	}
	var r result
	for waiting := true; waiting; {
		select {
		case s := <-signals:
			heard(s)
		case r = <-done:
			waiting = false
		}
	}
	for pending := true; pending; {
		select {
		case s := <-signals:
			heard(s)
		default:
			pending = false
		}
	}
	if r.lock != nil {
		log.acquired(r.lock, f, time.Since(start))
	}
	if came != nil && r.lock != nil {
		log.released(r.lock.Release(ctx), f.ttl)
		r.lock = nil
	}
	return r.rl, r.lock, came, r.err
}

func acquire(ctx context.Context, rl *redlock.Redlock, f runFlags, key string, log *runLog) (*redlock.Lock, error) {
	opts := []redlock.LockOption{redlock.WithRenewal()}
	if f.fencing {
		opts = append(opts, redlock.WithFencing())
	}
	m := rl.Mutex(key, opts...)
	if f.nonblock {
		return m.TryAcquire(ctx)
	}
	log.say(runEvent{Event: "waiting"})
	told, stop := context.WithCancel(ctx)
	var telling sync.WaitGroup
	telling.Go(func() { newWaiting(log, m, rl).tell(told) })
	defer telling.Wait()
	defer stop()
	if f.wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.wait)
		defer cancel()
	}
	return m.Acquire(ctx)
}
