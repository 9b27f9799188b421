//go:build unix

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quorumlock/redlock"
)

// A command must not go on under a lock that is not renewed, also when redlock is killed with a
// signal that cannot be handled. So two helpers run besides redlock, both this program again.
//
// The watchdog reads from a pipe of which redlock holds the only other end. It starts the command, adopts
// what the command leaves behind, and is told the end of the lease at each grant and renewal. When that end
// comes, because redlock is stopped, starved or stuck, or when the pipe closes, because redlock is dead, it
// ends all that descends from it. It is told to do so when the lock is lost.
//
// The starter is the process that becomes the command. It does so when redlock tells it to, before the end of
// the lease. Whatever the moment of redlock's death, either the command was never started, or it descends from
// the watchdog.
//
// Both are in redlock's session, as the command must be for its terminal's sake. Neither has "redlock" in its
// name: pkill would take the watchdog with redlock.
const (
	watchdogName = "lock-watchdog"
	starterName  = "lock-starter"
)

// What the watchdog is told, a line each, after the one that says what to start.
const (
	toldUntil = "until" // and a time of bootTime: the end of the lease
	toldEnd   = "end"   // the command, since the lock is lost
	toldOff   = "off"   // it is over, and what is left is not to be ended
)

// What the watchdog says, a line each.
const (
	saidStarted = "started" // and the starter's number
	saidStatus  = "status"  // and what wait(2) tells of the command
	saidEnds    = "ends"    // the command, since it was told to
	saidKills   = "kills"   // the command, of itself
	saidLeft    = "left"    // and what cannot be killed
	saidNone    = "none"    // is left
)

// order is the first line that the watchdog is told.
type order struct {
	Log  *runLog
	Path string
	Args []string
}

// beHelper makes this process a helper if it was started as one. Then it does not return.
func beHelper() {
	switch os.Args[0] {
	case watchdogName:
		err := errors.New(watchdogName + " is for redlock to start")
		if len(os.Args) == 7 {
			g := guardian{lifeline: fileOf(os.Args[3]), news: fileOf(os.Args[4])}
			err = g.guard(fileOf(os.Args[5]), fileOf(os.Args[6]))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "redlock:", err)
			os.Exit(exitRunFailed)
		}
		os.Exit(0)
	case starterName:
		err := errors.New(starterName + " is for redlock to start")
		if len(os.Args) > 4 {
			err = becomeCommand(fileOf(os.Args[1]), fileOf(os.Args[2]), os.Args[3], os.Args[4:])
		}
		fmt.Fprintln(os.Stderr, "redlock:", err)
		os.Exit(exitRunFailed)
	}
}

// fileOf is the open file of that number.
func fileOf(number string) *os.File {
	fd, _ := strconv.Atoi(number) // ours wrote it
	syscall.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), number)
}

// inherited are the files of our caller, each under its number, as of a jobserver or for flock, and besides those that
// are given: for a process that is to find them there.
func inherited(besides ...*os.File) []uintptr {
	last, given := uintptr(2), map[uintptr]bool{}
	for _, f := range besides {
		given[f.Fd()] = true
		last = max(last, f.Fd())
	}
	files := make([]uintptr, last+1) // those behind them are found there anyway
	for fd := range files {
		files[fd] = uintptr(fd)
		if flags, err := unix.FcntlInt(files[fd], unix.F_GETFD, 0); (err != nil || flags&unix.FD_CLOEXEC != 0) && !given[files[fd]] {
			files[fd] = ^uintptr(0) // our own, or none
		}
	}
	return files
}

// longestNap is how long the watchdog's timer runs at most: timers stand still while the machine
// sleeps, and bootTime goes on.
const longestNap = 50 * time.Millisecond

// threads are more than redlock or the watchdog needs at once.
const threads = 16

// makeThreads makes all threads that this process will need, which Go's runtime keeps. A command may use up all processes
// that its user, or its service, may have, and the runtime dies if it cannot make another thread.
func makeThreads() {
	runtime.GOMAXPROCS(min(2, runtime.GOMAXPROCS(0)))
	var made, over sync.WaitGroup
	made.Add(threads)
	enough := make(chan struct{})
	for range threads {
		over.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			made.Done()
			<-enough
		})
	}
	made.Wait()
	close(enough)
	over.Wait()
}

// guardian is what the watchdog does.
type guardian struct {
	lifeline, news *os.File
	said           []byte // by redlock, and not read yet
	order          order
	all            descent
	end            time.Duration // of the lease, as it was told last
	off            bool
	ending         atomic.Bool
}

// guard starts the command and ends it when the end that it read last has come, when it is told to, or when there
// is no more to be read. What is in the pipe counts first: a watchdog that was stopped itself finds its news there.
func (g *guardian) guard(start, failed *os.File) error {
	// As the command finds them, signals are what they were; so these are caught, which ends with exec, and not ignored.
	listen(make(chan os.Signal, 1))
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // or a log that is not read any more ends us
	nameProcess(watchdogName)
	makeThreads()
	adoptOrphans()
	if line, alive := g.line(); !alive || json.Unmarshal(line, &g.order) != nil {
		return nil
	}
	program, err := self()
	if err != nil {
		return err
	}
	args := append([]string{starterName, fmt.Sprint(start.Fd()), fmt.Sprint(failed.Fd()), g.order.Path}, g.order.Args...)
	pid, _, err := syscall.StartProcess(program, args, &syscall.ProcAttr{
		Env: os.Environ(), Files: inherited(start, failed), Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		return err
	}
	_, _ = start.Close(), failed.Close()
	g.all = descent{root: os.Getpid(), group: pid}
	// It is in the background of the terminal for good, and may say something there.
	signal.Ignore(syscall.SIGTTOU, syscall.SIGTTIN, syscall.SIGTSTP)
	_ = unix.SetNonblock(int(g.news.Fd()), true) // a redlock that is stopped must not stop us
	g.say(saidStarted, pid)
	go g.reap(pid)

	poll := []unix.PollFd{{Fd: int32(g.lifeline.Fd()), Events: unix.POLLIN}}
	for {
		nap := -time.Millisecond // no end
		if g.end > 0 && !g.off && !g.ending.Load() {
			nap = min(max(g.end-bootTime(), 0), longestNap)
		}
		due := nap == 0
		if nap > 0 {
			nap = max(nap, time.Millisecond)
		}
		if !bytes.ContainsRune(g.said, '\n') {
			switch n, err := unix.Poll(poll, int(nap/time.Millisecond)); {
			case errors.Is(err, unix.EINTR):
				continue
			case n == 0:
				if due {
					g.kill("the lease is over, and redlock did not end the command")
				}
				continue
			}
		}
		line, alive := g.line()
		if !alive {
			g.kill("redlock ended before its command")
			return nil
		}
		switch what, rest, _ := strings.Cut(string(line), " "); what {
		case toldUntil:
			_, _ = fmt.Sscan(rest, (*int64)(&g.end))
		case toldOff:
			g.off = true
		case toldEnd:
			if g.ending.CompareAndSwap(false, true) {
				g.say(saidEnds, 0)
				g.all.end(func(why string) { g.say(saidLeft, why) })
				g.say(saidNone, 0)
			}
		}
	}
}

// line is what redlock says next, if it is alive.
func (g *guardian) line() (line []byte, alive bool) {
	for {
		line, rest, whole := bytes.Cut(g.said, []byte{'\n'})
		if whole {
			g.said = rest
			return line, true
		}
		b := make([]byte, 4096)
		n, err := g.lifeline.Read(b)
		if err != nil {
			return nil, false
		}
		g.said = append(g.said, b[:n]...)
	}
}

// kill is for a redlock that does not end the command itself.
func (g *guardian) kill(why string) {
	if g.off || !g.ending.CompareAndSwap(false, true) {
		return
	}
	g.say(saidKills, 0) // before, so that what sees the command dead finds in the pipe why
	killed, log := true, g.order.Log
	g.all.end(func(left string) {
		killed = false
		text := "the watchdog cannot kill the command: " + left + ": " + why
		log.say(runEvent{Event: "lost", Error: text})
		log.print("%s: %s", log.name(), text)
	})
	g.say(saidNone, 0)
	if killed {
		log.killed(why)
	}
}

// reap waits for the command and whatever it left behind, until nothing descends from us any more.
func (g *guardian) reap(pid int) {
	for {
		var s syscall.WaitStatus
		child, err := syscall.Wait4(-1, &s, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return
		case child != pid:
		case !s.Stopped():
			for errors.Is(g.say(saidStatus, uint32(s)), syscall.EAGAIN) {
				time.Sleep(longestNap)
			}
		case !g.ending.Load(): // or it is we who stopped it
			_ = g.say(saidStatus, uint32(s))
		}
	}
}

// say does not wait: redlock may be stopped, and have left the pipe full.
func (g *guardian) say(what string, of any) error {
	_, err := unix.Write(int(g.news.Fd()), fmt.Appendln(nil, what, of))
	return err
}

// becomeCommand waits for the end of the lease to be told, and executes the command if that is yet
// to come. It returns if that fails, or if there is nobody any more who holds the lock.
func becomeCommand(start io.Reader, failed *os.File, path string, args []string) error {
	var end time.Duration
	if _, err := fmt.Fscanln(start, (*int64)(&end)); err != nil {
		return errors.New("redlock ended before it started the command")
	}
	fail := func(errno syscall.Errno) {
		_, _ = fmt.Fprint(failed, int(errno))
		os.Exit(exitRunFailed) // and who started us says why
	}
	if bootTime() >= end {
		fail(0)
	}
	err := syscall.Exec(path, args, os.Environ())
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		fail(errno)
	}
	return err
}

// self is this program, also when its file was replaced.
func self() (string, error) {
	if runtime.GOOS == "linux" {
		const running = "/proc/self/exe"
		if _, err := os.Stat(running); err == nil {
			return running, nil
		}
	}
	return os.Executable()
}

// watchdog is the one of a command, as redlock has it.
type watchdog struct {
	pid, since     int  // since: when it was started
	older          bool // redlock had children before
	lifeline, news *os.File
	starts, fails  *os.File
	log            *runLog

	started chan int
	changes chan syscall.WaitStatus // of the command itself: how it stopped, and last how it ended
	left    chan string             // why not all of the command can be killed
	none    chan struct{}           // closed when nothing of it is left
	died    chan struct{}           // closed when no more is heard of the watchdog
	reaped  chan struct{}
	over    chan struct{} // closed when it was dismissed
	group   atomic.Int64
	ends    atomic.Bool // it ends the command
	kills   atomic.Bool // and was not told to

	mu    sync.Mutex
	until time.Time // of the lease, as it was told last
}

func startWatchdog(log *runLog, path string, command, env []string) (*watchdog, error) {
	program, err := self()
	if err != nil {
		return nil, err
	}
	var ours, theirs []*os.File
	for _, toThem := range []bool{true, false, true, false} {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll(ours, theirs)
			return nil, err
		}
		if !toThem {
			r, w = w, r
		}
		theirs, ours = append(theirs, r), append(ours, w)
	}
	args := []string{watchdogName, "of", strconv.Itoa(os.Getpid())}
	for _, f := range theirs {
		args = append(args, fmt.Sprint(f.Fd()))
	}
	w := &watchdog{
		lifeline: ours[0], news: ours[1], starts: ours[2], fails: ours[3], log: log,
		started: make(chan int, 1), changes: make(chan syscall.WaitStatus, 16), left: make(chan string, 1),
		none: make(chan struct{}), died: make(chan struct{}), reaped: make(chan struct{}), over: make(chan struct{}),
	}
	w.older = !childless()
	// In a group of its own, which what is done to ours, and the terminal's keys, do not reach.
	w.pid, _, err = syscall.StartProcess(program, args, &syscall.ProcAttr{
		Env: env, Files: inherited(theirs...), Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	closeAll(theirs)
	if err != nil {
		closeAll(ours)
		return nil, err
	}
	p, _ := lookAt(w.pid)
	w.since = p.start
	go w.reap()
	go w.hear()
	text, err := json.Marshal(order{log, path, command})
	if err != nil {
		panic(err) // strings
	}
	// Not as arguments: what ends all that has a key's or a program's name there would end both of us.
	_, _ = w.lifeline.Write(append(text, '\n'))
	return w, nil
}

func closeAll(files ...[]*os.File) {
	for _, f := range slices.Concat(files...) {
		_ = f.Close()
	}
}

// reap waits for the watchdog and, if it is killed, for what comes to us: the command and its orphans. A watchdog
// that is stopped guards nothing, and is continued.
func (w *watchdog) reap() {
	for {
		var s syscall.WaitStatus
		child, err := syscall.Wait4(-1, &s, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return
		case child == w.pid && s.Stopped():
			_ = syscall.Kill(w.pid, syscall.SIGCONT)
		case child == w.pid:
			close(w.reaped)
		case child == int(w.group.Load()):
			w.changed(s)
		}
	}
}

func (w *watchdog) changed(s syscall.WaitStatus) {
	select {
	case w.changes <- s:
	case <-w.over:
	}
}

// hear takes what the watchdog says.
func (w *watchdog) hear() {
	defer close(w.died)
	for lines := bufio.NewScanner(w.news); lines.Scan(); {
		what, of, _ := strings.Cut(lines.Text(), " ")
		switch number, _ := strconv.Atoi(of); what {
		case saidStarted:
			w.group.Store(int64(number))
			w.started <- number
		case saidStatus:
			w.changed(syscall.WaitStatus(number))
		case saidEnds:
			w.ends.Store(true)
		case saidKills:
			w.kills.Store(true)
			w.ends.Store(true)
		case saidLeft:
			w.left <- of
		case saidNone:
			close(w.none)
		}
	}
}

// dead reports whether nothing more is to be expected of the watchdog: all of the command is ours.
func (w *watchdog) dead() bool {
	select {
	case <-w.died:
		<-w.reaped
		return true
	default:
		return false
	}
}

// descent is what the command started, as far as it lives.
func (w *watchdog) descent() descent {
	if w.dead() {
		return descent{root: os.Getpid(), since: w.since, older: w.older, group: int(w.group.Load())}
	}
	return descent{root: w.pid}
}

// told reports whether the watchdog was told. One that is starved must not hold us up, so a full pipe is left.
func (w *watchdog) told(what string, of ...any) bool {
	_ = w.lifeline.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
	_, err := w.lifeline.Write(fmt.Appendln(nil, append([]any{what}, of...)...))
	return err == nil
}

// tell says until when the command may run. What was not told is told the next time.
func (w *watchdog) tell(until time.Time, end time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if until.After(w.until) && w.told(toldUntil, int64(end)) {
		w.until = until
	}
}

// endCommand tells the watchdog that the lock is lost. One that does not answer in time is killed, and the command is
// ours to end.
func (w *watchdog) endCommand(within time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.told(toldEnd) {
		w.kill()
		return
	}
	time.AfterFunc(within, func() {
		if !w.ends.Load() {
			w.kill()
		}
	})
}

// kill does not meet another process that got the number.
func (w *watchdog) kill() {
	select {
	case <-w.reaped:
	default:
		_ = syscall.Kill(w.pid, syscall.SIGKILL)
	}
}

// dismiss ends the watchdog, which from then on ends nothing, and reports whether it had ended the command of itself.
func (w *watchdog) dismiss() (killed bool) {
	close(w.over)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.told(toldOff) {
		w.kill() // or it takes the end of the pipe for our death
	}
	closeAll([]*os.File{w.lifeline, w.starts, w.fails})
	defer time.AfterFunc(time.Second, w.kill).Stop()
	<-w.died
	<-w.reaped
	_ = w.news.Close()
	return w.kills.Load()
}

// notExecuted is why a command did not start.
type notExecuted struct{ error }

func (e notExecuted) Unwrap() error { return e.error }

// errTooLate is why a command was not started.
var errTooLate = fmt.Errorf("%w before the command was started", redlock.ErrLost)

// start lets the command run, in a group of its own, if that is before the end of the lease. It returns the group;
// notExecuted if the command cannot be executed; or errTooLate.
func (w *watchdog) start(lease func() (time.Time, time.Duration), path string) (group int, err error) {
	select {
	case group = <-w.started:
	case <-w.died:
		return 0, errors.New("the command's watchdog died")
	}
	until, end := lease()
	w.tell(until, end)
	_, _ = fmt.Fprintln(w.starts, int64(end)) // a starter that was killed shows in how it ended
	_ = w.starts.Close()
	// It closes when the command is executed.
	if reason, _ := io.ReadAll(w.fails); len(reason) > 0 {
		errno, _ := strconv.Atoi(string(reason))
		if errno == 0 {
			return 0, errTooLate
		}
		return 0, notExecuted{&os.PathError{Op: "exec", Path: path, Err: syscall.Errno(errno)}}
	}
	return group, nil
}
