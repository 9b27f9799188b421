//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/lockset"
)

type runFlags struct {
	nonblock bool
	wait     time.Duration
	ttl      time.Duration
	keep     time.Duration
	minHold  time.Duration
	release  time.Duration // how long it is tried
	adopt    bool
	token    string // of the lock to adopt
	fencing  bool
	shared   bool
	permits  int
	busy     int
	owner    string // as others see us
	json     bool
	verbose  bool
}

func runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run KEY... [flags] [-- COMMAND [ARGUMENT...]]",
		Short: "Hold a lock while a command runs",
		Long: `Hold a lock while a command runs.

It waits in the lock's queue, runs the command in a process group of its own, and renews the
lease until the whole group has gone; then it releases, and tries again for a minute if too
few nodes answer (--release-timeout, Ctrl-C). Signals go to that group.
Standard input and output are the command's. On a terminal it says after a second what it
waits for; elsewhere it does with --verbose, and for programs with --json. If no majority of
the nodes answers it waits, too.

Without a command it holds the lock until Ctrl-C, or another signal that ends programs.

With several keys the command runs while all of these locks are held. It acquires all of
them or none. Two commands that want the same keys cannot deadlock, whatever their order. With
--shared any number run beside each other, and none beside an exclusive lock. With
--permits 4 up to four run at a time; all of them must give the same number, and none of
them --shared, which is let in beside permits. All wait in one queue, first come, first
served; when it is the turn of one with --shared, all that wait with --shared run.

With --keep the lock stays for that long after the command has ended, for a job that many
machines start and one shall run. No process is needed for that: the lease lasts as long.
With --min-hold it is not free before that long after it was got, and at once if the command
takes longer: for machines whose clocks differ.

With --adopt it goes on with a lock that another process detached, or held when it was
killed; be sure that it was. The token is that of Lock.Detach in a Go program, or the
REDLOCK_TOKEN of the killed process's command. It is read from $REDLOCK_ADOPT, which the command
does not get, since every user of the machine can read arguments.

What leaves the group and stays in the session ('timeout', jobs of a shell with 'set -m') is
waited for like the group, and gets signals, too. Daemons are not waited for.

If the lease cannot be renewed, it says so, and the group gets SIGTERM when a third of the
TTL is left. Before another can get the lock, all that the command has started is stopped and
killed: whatever group, session, user and environment it moved to, and daemons, too. A second
process, "lock-watchdog", does so when redlock is killed, or is stopped until the lease ends;
if it is killed itself, redlock does. What cannot be killed (it is another user's, or waits
for a device) is said, and the lock is left to its lease.

These go on beyond the lock, and only what they change can refuse them, by --fencing: the
command, where both processes are killed or stopped; and what a daemon starts for the
command, as by systemd-run, at or docker run, or nsenter leaves behind in another container.
On systems other than Linux only the group is waited for and killed, and nothing that left it,
as by timeout, setsid or 'set -m'.

The command finds REDLOCK_KEY, REDLOCK_TOKEN and, with --fencing, REDLOCK_FENCE in its
environment, of several locks a line each in the order of the keys; and with --permits
REDLOCK_PERMIT, a number from 0 that no other command has meanwhile. These are besides all that is in ours: REDLOCK_ADDRS, too, with the passwords in it. To
keep these from the command, give them in the file of --config.

Exit status: the command's, or 128 and the number of the signal that ended it, or that
came while waiting. Otherwise
    0  without a command: a signal ended it
    2  the command line breaks a rule
  120  another holds the lock, or others all permits (--nonblock, --timeout), or
       it is not held under the token (--adopt); -E sets another number
  121  no majority of nodes answered within --timeout (five seconds with
       --nonblock and --adopt), or a majority refuses us (a wrong password)
  122  the lock was lost or could not be renewed, and redlock or its watchdog ended
       the command; or it ended with 0, and its lock had been lost before
  123  anything else that went wrong
  126  the command cannot be executed
  127  there is no such command`,
		Example: `  redlock run prune --nonblock -- ./prune.sh     # skipped while another does it
  redlock run migrate --timeout 5m --ttl 30s -- ./migrate up
  redlock run report --timeout 10s --keep 5m -- ./report.sh    # once, on one of many machines
  redlock run prune --nonblock --min-hold 30s -- ./prune.sh    # clocks that differ by less than 30s
  redlock run account:1 account:2 -- ./transfer   # both locks or none
  redlock run config --shared -- ./read           # beside other readers
  redlock run api --permits 4 -- ./call           # four at a time; REDLOCK_PERMIT is 0 to 3
  redlock run maintenance                         # held until Ctrl-C, or until it is lost
  redlock run orders --fencing -- sh -c 'echo token $REDLOCK_FENCE'`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Args = runArgs
	s := connectFlags(cmd)
	fl := cmd.Flags()
	fl.BoolVarP(&f.nonblock, "nonblock", "n", false, "do not wait; of several that ask at once one gets the lock, nearly always")
	fl.DurationVarP(&f.wait, "timeout", "w", 0, "wait no longer than this; 0 for as long as it takes")
	fl.DurationVar(&f.ttl, "ttl", 10*time.Second, "the lease, from 1s to 24h; it is renewed at a third of it")
	fl.DurationVar(&f.keep, "keep", 0, "keep the lock for this long after the command, from 1s to 24h; it is the lease, too")
	fl.DurationVar(&f.minHold, "min-hold", 0, "not free sooner than this after it was got, from 1s to 24h; the lease is no shorter")
	fl.DurationVar(&f.release, "release-timeout", time.Minute, "at the end try to release for no longer than this, nor than the lease; 0 for once")
	fl.BoolVar(&f.adopt, "adopt", false, "go on with the lock whose token is in $REDLOCK_ADOPT")
	fl.BoolVar(&f.fencing, "fencing", false, "get a fencing token")
	fl.BoolVar(&f.shared, "shared", false, "hold the lock together with others who say --shared")
	fl.IntVar(&f.permits, "permits", 0, "hold one of this many permits, from 1 to 1024")
	fl.IntVarP(&f.busy, "conflict-exit-code", "E", exitBusy, "exit `status` if the lock is held, from 0 to 255")
	fl.StringVar(&f.owner, "owner", "", "a `label` that others see, before host:pid, up to 100 bytes (default: user@host:pid and the command's name)")
	fl.BoolVar(&f.json, "json", false, "say on standard error what happens, one JSON object per line")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "say on standard error what it waits for, and when it has the lock")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		keys, command := splitArgs(cmd, args)
		if err := f.brokenRule(cmd, len(keys), len(command) > 0); err != nil {
			return err
		}
		if f.keep > 0 {
			f.ttl = f.keep
		}
		f.owner = f.label(command)
		// The guard keeps a restarted node from granting for the lease.
		f.ttl = max(f.ttl, f.minHold)
		if f.adopt {
			// The command is no process to tell it to.
			f.token = os.Getenv(adoptVariable)
			os.Unsetenv(adoptVariable)
			if !isToken.MatchString(f.token) {
				return &usageError{fmt.Errorf("--adopt needs a token in $%s: 32 hexadecimal digits in lower case, and it has %d bytes", adoptVariable, len(f.token))}
			}
		}
		return runUnderLock(cmd, s, f, keys, command)
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
// a script, so that the command ignores it, too. Of signals other than HUP and INT Go's runtime
// forgets that before main; the command gets them as usual.
func listen(signals chan<- os.Signal) {
	for _, s := range forwarded {
		if !ignoredAtStart[s] {
			signal.Notify(signals, s)
		}
	}
}

func runUnderLock(cmd *cobra.Command, s settings, f runFlags, keys, command []string) error {
	log := &runLog{w: cmd.ErrOrStderr(), json: f.json, verbose: f.verbose, keys: keys}
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
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // or a log that is not read any more ends us

	// The program's own context ends with the first interrupt, which here is the
	// command's to handle.
	ctx := context.WithoutCancel(cmd.Context())
	nodes, err := s.operate(admin.Options{TTL: f.ttl}) // for what is said of a lock that is awaited or refused
	if err != nil {
		return err
	}
	defer nodes.Close()
	rl, held, sig, err := getLock(ctx, s, nodes, f, keys, signals, log)
	if rl != nil {
		defer rl.Close()
	}
	switch {
	case sig != nil:
		return &exitStatus{code: 128 + int(sig.(syscall.Signal))}
	case isUsage(err):
		return err
	case err != nil:
		return log.end(failedToLock(inShort(ctx, nodes, f, keys, err), f))
	}
	j := &job{held: held, ttl: f.ttl, signals: signals, log: log, nodes: nodes, patience: f.release}
	if f.minHold > 0 {
		j.notBefore = time.Now().Add(f.minHold)
	}
	if path == "" {
		return log.end(j.release(ctx, j.hold()))
	}
	status := j.run(path, command, f)
	if f.keep == 0 || j.group == 0 || j.over {
		return log.end(j.release(ctx, status))
	}
	err = held.Extend(ctx, f.keep)
	if errors.Is(err, redlock.ErrLost) {
		return log.end(j.wasLost(err, status))
	}
	log.kept(err, held)
	return log.end(status)
}

// release is for the end, and returns with what redlock ends.
func (j *job) release(ctx context.Context, status *exitStatus) *exitStatus {
	lost := lostBy(j.held)
	end := j.leaseEnd()
	err := j.held.Release(ctx)
	switch {
	case j.over && err != nil:
		// What was lost cannot be released: no news.
	case lost != nil && !j.over:
		return j.wasLost(lost, status)
	case errors.Is(err, redlock.ErrNotHeld):
		return j.wasLost(fmt.Errorf("%w, which was noticed at its release: %w", redlock.ErrLost, err), status)
	case errors.Is(err, redlock.ErrNoQuorum) && j.patience > 0:
		j.log.released(j.releaseAgain(ctx, err, end), time.Until(end), j.notBefore)
	default:
		j.log.released(err, time.Until(end), j.notBefore)
	}
	return status
}

// leaseEnd is when all of the leases are over, by themselves.
func (j *job) leaseEnd() (end time.Time) {
	for _, l := range j.held {
		if until := l.Until(); until.After(end) {
			end = until
		}
	}
	return end
}

// lookAtRelease is how often it is seen whether a release has got through.
const lookAtRelease = 200 * time.Millisecond

// releaseAgain is for a release that too few nodes confirmed. The library goes on sending it as long as we are there; so
// this waits until a majority of the nodes has no more of the locks, a signal that ends programs comes, or it took
// too long. It returns why too few nodes confirmed it if they still have not.
func (j *job) releaseAgain(ctx context.Context, why error, end time.Time) error {
	until := time.Now().Add(j.patience)
	if end.Before(until) {
		until = end
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	j.log.releasing(why, until)
	look := time.NewTicker(lookAtRelease)
	defer look.Stop()
	for {
		select {
		case s := <-j.signals:
			if ends(s) {
				return why
			}
		case <-look.C:
			if j.released(ctx) {
				return nil
			}
		case <-ctx.Done():
			if time.Now().Before(end) {
				return why
			}
			return nil // it ended by itself
		}
	}
}

// released reports whether a majority of the nodes has no more of each lock, or no more than --min-hold leaves.
func (j *job) released(ctx context.Context) bool {
	stays := max(time.Until(j.notBefore), 0)
	stays += stays/50 + lookAtRelease // for clocks that differ, and what the answers took
	for _, l := range j.held {
		st, err := j.nodes.Inspect(ctx, l.Key())
		if err != nil {
			return false
		}
		without := 0
		for _, n := range st.Nodes {
			has := n.Token == l.Token() && n.TTL > stays || slices.ContainsFunc(n.Holders, func(h admin.Holder) bool { return h.Token == l.Token() })
			if n.Err == nil && !has {
				without++
			}
		}
		if without < j.nodes.Quorum() {
			return false
		}
	}
	return true
}

// wasLost is for a command that ended before it was known that another may have had the lock
// meanwhile. What it says of itself counts, unless that is that all is well.
func (j *job) wasLost(err error, status *exitStatus) *exitStatus {
	lost := j.lose(err, "")
	if status.code == 0 {
		return lost
	}
	j.log.print("%s", strings.TrimPrefix(err.Error(), "redlock: "))
	return status
}

// hold returns when a signal ends it, or when the lock is lost.
func (j *job) hold() *exitStatus {
	j.log.say(runEvent{Event: "holding"})
	if j.log.onTerminal() != nil {
		j.log.print("holding %s until Ctrl-C", j.log.name())
	} else {
		j.log.add("holding %s until a signal", j.log.name())
	}
	over, done := j.held.Within(context.Background())
	defer done()
	for {
		select {
		case s := <-j.signals:
			if ends(s) {
				j.log.say(runEvent{Event: "signal", Signal: nameOf(s), Forwarded: new(false)})
				return &exitStatus{}
			}
		case <-over.Done():
			return j.lose(context.Cause(over), "")
		}
	}
}

// lostBy is why the first lock was lost that was; nil if all are held.
func lostBy(held lockset.Locks) error {
	for _, l := range held {
		if why := context.Cause(l.Context()); why != nil {
			return why
		}
	}
	return nil
}

func failedToLock(err error, f runFlags) *exitStatus {
	switch {
	case errors.Is(err, redlock.ErrHeld), errors.Is(err, redlock.ErrNotHeld):
		return &exitStatus{f.busy, err}
	case errors.Is(err, redlock.ErrNoQuorum), errors.Is(err, redlock.ErrExpired):
		return &exitStatus{exitNoQuorum, err}
	default:
		return &exitStatus{exitRunFailed, err}
	}
}

// getLock connects and waits. It returns the locks, or the signal that came first. One that
// comes with the grant counts: no command is started during a shutdown.
func getLock(ctx context.Context, s settings, nodes *admin.Nodes, f runFlags, keys []string, signals <-chan os.Signal, log *runLog) (*redlock.Redlock, lockset.Locks, os.Signal, error) {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	if f.wait > 0 {
		var stop context.CancelFunc
		inner, stop = context.WithTimeout(inner, f.wait)
		defer stop()
	}
	type result struct {
		rl   *redlock.Redlock
		held lockset.Locks
		err  error
	}
	done := make(chan result, 1)
	start := time.Now()
	go func() {
		rl, err := s.openFor(inner, f, log)
		if err != nil {
			done <- result{err: err}
			return
		}
		held, err := acquire(inner, rl, nodes, f, keys, log)
		done <- result{rl, held, err}
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
	if r.held != nil {
		log.acquired(r.held, f, time.Since(start))
	}
	if came != nil && r.held != nil {
		log.released(r.held.Release(ctx), f.ttl, time.Now().Add(f.minHold))
		r.held = nil
	}
	return r.rl, r.held, came, r.err
}

// openFor connects to the nodes. It waits out an outage as long as run waits for the lock; with
// --nonblock and --adopt as long as the library does.
func (s settings) openFor(ctx context.Context, f runFlags, log *runLog) (*redlock.Redlock, error) {
	if f.nonblock || f.adopt {
		return s.open(ctx, f.ttl, f.owner)
	}
	told, stop := context.WithCancel(ctx)
	var telling sync.WaitGroup
	telling.Go(func() { log.tellOutage(told) })
	defer telling.Wait()
	defer stop()
	if f.wait == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, forEver)
		defer cancel()
	}
	return s.open(ctx, f.ttl, f.owner)
}

// forEver is longer than any machine runs.
const forEver = 100 * 365 * 24 * time.Hour

func acquire(ctx context.Context, rl *redlock.Redlock, nodes *admin.Nodes, f runFlags, keys []string, log *runLog) (lockset.Locks, error) {
	if f.adopt {
		lock, err := rl.Mutex(keys[0], f.lockOptions()...).Adopt(ctx, f.token)
		if err != nil {
			return nil, err
		}
		return lockset.Locks{lock}, nil
	}
	if f.nonblock {
		return wanted(rl, f, keys).TryAcquire(ctx)
	}
	log.say(runEvent{Event: "waiting"})
	told, stop := context.WithCancel(ctx)
	var telling sync.WaitGroup
	telling.Go(func() { newWaiting(log, nodes, f.owner).tell(told) })
	defer telling.Wait()
	defer stop()
	return wanted(rl, f, keys).Acquire(ctx)
}
