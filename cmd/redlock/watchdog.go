//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quorumlock/redlock"
)

// A command must not go on under a lock that nobody renews, also when we are killed with a
// signal that cannot be handled. So two helpers run besides it, both this program again.
//
// The watchdog reads from a pipe of which we hold the only other end. We tell it the command's
// group and, at each grant and renewal, the end of the lease. When that end comes, because we
// are stopped, starved or stuck, or when the pipe closes, because we are dead, it kills the group.
//
// The starter is the process that becomes the command. It does so when we tell it to, which
// is after we have told its group to the watchdog, and before the end of the lease. Whatever
// the moment of our death, either the command was never started, or the watchdog knows its group.
//
// Neither has "redlock" in its name: pkill would take the watchdog with us.
const (
	watchdogName = "lock-watchdog"
	starterName  = "lock-starter"
)

// beHelper makes this process a helper if it was started as one. Then it does not return.
func beHelper() {
	switch os.Args[0] {
	case watchdogName:
		nameProcess(watchdogName)
		// It has a session of its own, but whoever ends all processes of a service finds it.
		// It ends with us, and should not before.
		signal.Ignore(forwarded...)
		guardGroup(os.NewFile(3, "lifeline"), os.NewFile(4, "news"))
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

// longestNap is how long the watchdog's timer runs at most: timers stand still while the machine
// sleeps, and bootTime goes on.
const longestNap = 50 * time.Millisecond

// guardGroup kills the group that it read last when the end that it read last has come, or when
// there is no more to be read. What is in the pipe counts first: a watchdog that was stopped itself
// finds its news there.
func guardGroup(lifeline, news *os.File) {
	_, _ = news.Write([]byte{1}) // it guards
	var (
		said   []byte
		log    *runLog
		group  int
		end    time.Duration
		killed bool
	)
	kill := func(why string) {
		if group < noGroup || killed {
			return
		}
		killed = true
		// Before the kill: whoever sees the group dead finds in the pipe who did it.
		_, _ = news.Write([]byte{1})
		err := error(nil)
		if group > noGroup {
			err = syscall.Kill(-group, syscall.SIGKILL)
		}
		for range 100 { // one may have started another meanwhile
			if !log.mark.outside(group, syscall.SIGKILL) {
				break
			}
			time.Sleep(longestNap / 10)
		}
		if errors.Is(err, syscall.EPERM) {
			_, _ = news.Write([]byte{1}) // so it was not killed
			why = "the watchdog cannot kill the command: it runs as another user: " + why
			log.say(runEvent{Event: "lost", Error: why})
			log.print("%s: %s", log.name(), why)
			return
		}
		log.killed(why)
	}
	poll := []unix.PollFd{{Fd: int32(lifeline.Fd()), Events: unix.POLLIN}}
	for {
		nap := -time.Millisecond // no end
		if group >= noGroup && !killed {
			nap = min(max(end-bootTime(), 0), longestNap)
		}
		due := nap == 0
		if nap > 0 {
			nap = max(nap, time.Millisecond)
		}
		switch n, err := unix.Poll(poll, int(nap/time.Millisecond)); {
		case errors.Is(err, unix.EINTR):
			continue
		case n == 0:
			if due {
				kill("the lease is over, and redlock did not end the command")
			}
			continue
		}
		b := make([]byte, 4096)
		n, err := lifeline.Read(b)
		if err != nil {
			kill("redlock ended before its command")
			return
		}
		said = append(said, b[:n]...)
		for {
			line, rest, whole := bytes.Cut(said, []byte{'\n'})
			if !whole {
				break
			}
			if log == nil {
				log = &runLog{w: os.Stderr}
				_ = json.Unmarshal(line, log)
			} else {
				_, _ = fmt.Sscan(string(line), &group, (*int64)(&end))
			}
			said = rest
		}
	}
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

// watchdog is the one of a command.
type watchdog struct {
	cmd            *exec.Cmd
	lifeline, news *os.File
	log            *runLog

	mu    sync.Mutex
	group int
	until time.Time // of the lease, as it was told last
}

func startWatchdog(log *runLog) (*watchdog, error) {
	path, err := self()
	if err != nil {
		return nil, err
	}
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	news, says, err := os.Pipe()
	if err != nil {
		_ = ours.Close()
		return nil, err
	}
	defer says.Close()
	w := &watchdog{lifeline: ours, news: news, log: log, cmd: &exec.Cmd{
		Path: path, Args: []string{watchdogName, "of", strconv.Itoa(os.Getpid())}, Dir: "/",
		Stderr: os.Stderr, ExtraFiles: []*os.File{theirs, says},
		// Beyond the reach of what is done to our group and our terminal.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}}
	if err := w.cmd.Start(); err != nil {
		_, _ = ours.Close(), news.Close()
		return nil, err
	}
	text, err := json.Marshal(log)
	if err != nil {
		panic(err) // strings
	}
	// Not as arguments: whoever ends what has a key's name in its arguments would end both of us.
	_, _ = ours.Write(append(text, '\n'))
	return w, nil
}

// tell says until when the group may run. A watchdog that died is said, and nothing to give up for: the
// lock is held. One that is stopped must not stop us, so a full pipe is left, and it is tried again.
func (w *watchdog) tell(until time.Time, end time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.group == 0 || !until.After(w.until) {
		return
	}
	_ = w.lifeline.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
	switch _, err := fmt.Fprintln(w.lifeline, w.group, int64(end)); {
	case err == nil:
		w.until = until
	case errors.Is(err, syscall.EPIPE):
		w.group = 0
		const what = "the watchdog died: if redlock is killed or stopped, the command goes on"
		w.log.say(runEvent{Event: "unguarded", Error: what})
		w.log.print("%s", what)
	}
}

// watch tells whom to kill.
func (w *watchdog) watch(group int, until time.Time, end time.Duration) {
	w.mu.Lock()
	w.group, w.until = group, time.Time{}
	w.mu.Unlock()
	w.tell(until, end)
}

// standDown tells that there is nobody to kill any more.
func (w *watchdog) standDown() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.group = 0
	_ = w.lifeline.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
	_, err := fmt.Fprintln(w.lifeline, 0, 0)
	return err
}

// dismiss ends the watchdog, and reports whether it killed the group.
func (w *watchdog) dismiss() (killed bool) {
	if w.standDown() != nil {
		_ = w.cmd.Process.Kill() // or it takes the end of the pipe for our death
	}
	_ = w.lifeline.Close()
	defer time.AfterFunc(time.Second, func() { _ = w.cmd.Process.Kill() }).Stop()
	said, _ := io.ReadAll(w.news)
	_ = w.news.Close()
	_ = w.cmd.Wait()
	return len(said) == 1
}

// notExecuted is why a command did not start.
type notExecuted struct{ error }

func (e notExecuted) Unwrap() error { return e.error }

// errTooLate is why a command was not started.
var errTooLate = fmt.Errorf("%w before the command was started", redlock.ErrLost)

// startUnder starts the command in a group of its own, which the watchdog knows before the
// command runs, if that is before the end of the lease. It returns the group; notExecuted if the
// command cannot be executed; or errTooLate.
func startUnder(w *watchdog, lease func() (time.Time, time.Duration), path string, command, env []string) (group int, err error) {
	program, err := self()
	if err != nil {
		return 0, err
	}
	start, starts, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer starts.Close()
	fails, failed, err := os.Pipe()
	if err != nil {
		_ = start.Close()
		return 0, err
	}
	defer fails.Close()
	// The command finds the files of redlock's caller, each under its number, as of a jobserver or for flock.
	files := make([]uintptr, max(start.Fd(), failed.Fd())+1)
	for fd := range files {
		files[fd] = uintptr(fd)
		if flags, err := unix.FcntlInt(files[fd], unix.F_GETFD, 0); (err != nil || flags&unix.FD_CLOEXEC != 0) && files[fd] != start.Fd() && files[fd] != failed.Fd() {
			files[fd] = ^uintptr(0) // our own, or none
		}
	}
	args := append([]string{starterName, fmt.Sprint(start.Fd()), fmt.Sprint(failed.Fd()), path}, command...)
	group, _, err = syscall.StartProcess(program, args, &syscall.ProcAttr{Env: env, Files: files, Sys: processGroup()})
	_, _ = start.Close(), failed.Close()
	if err != nil {
		return 0, err
	}
	if _, err := io.ReadFull(w.news, make([]byte, 1)); err != nil {
		_ = starts.Close()
		_, _ = syscall.Wait4(group, nil, 0, nil)
		return 0, errors.New("the command's watchdog died")
	}
	until, end := lease()
	w.watch(group, until, end)
	_, _ = fmt.Fprintln(starts, int64(end)) // a starter that was killed shows in how it ended
	// It closes when the command is executed.
	if reason, _ := io.ReadAll(fails); len(reason) > 0 {
		_, _ = syscall.Wait4(group, nil, 0, nil)
		errno, _ := strconv.Atoi(string(reason))
		if errno == 0 {
			return 0, errTooLate
		}
		return 0, notExecuted{&os.PathError{Op: "exec", Path: path, Err: syscall.Errno(errno)}}
	}
	return group, nil
}
