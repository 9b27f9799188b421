//go:build unix

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
)

// A command must not go on under a lock that nobody renews, also when we are killed with a
// signal that cannot be handled. So two helpers run besides it, both this program again.
//
// The watchdog reads from a pipe of which we hold the only other end. When that closes, and
// we did not say before that all is well, we are dead, and it kills the command's group.
//
// The starter is the process that becomes the command. It does so when we tell it to, which
// is after we have told its group to the watchdog. Whatever the moment of our death, either
// the command was never started, or the watchdog knows its group.
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
		ready := os.NewFile(4, "ready")
		_, _ = ready.Write([]byte{1})
		_ = ready.Close()
		guardGroup(os.NewFile(3, "lifeline"))
		os.Exit(0)
	case starterName:
		err := becomeCommand(os.NewFile(3, "start"), os.NewFile(4, "failed"), os.Args[1], os.Args[2:])
		fmt.Fprintln(os.Stderr, "redlock:", err)
		os.Exit(exitRunFailed)
	}
}

// guardGroup kills the group that it read last when there is no more to be read.
func guardGroup(lifeline io.Reader) {
	group := 0
	for lines := bufio.NewScanner(lifeline); lines.Scan(); {
		group, _ = strconv.Atoi(lines.Text())
	}
	if group > 1 {
		_ = syscall.Kill(-group, syscall.SIGKILL)
	}
}

// becomeCommand waits for a byte and executes the command. It returns if that fails, or if
// there is nobody any more who holds the lock.
func becomeCommand(start io.Reader, failed *os.File, path string, args []string) error {
	syscall.CloseOnExec(3)
	syscall.CloseOnExec(4)
	if _, err := io.ReadFull(start, make([]byte, 1)); err != nil {
		return errors.New("redlock ended before it started the command")
	}
	err := syscall.Exec(path, args, os.Environ())
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		_, _ = fmt.Fprint(failed, int(errno))
		os.Exit(exitRunFailed) // and who started us says why
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
	cmd             *exec.Cmd
	lifeline, ready *os.File
}

func startWatchdog() (*watchdog, error) {
	path, err := self()
	if err != nil {
		return nil, err
	}
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	ready, says, err := os.Pipe()
	if err != nil {
		_ = ours.Close()
		return nil, err
	}
	defer says.Close()
	w := &watchdog{lifeline: ours, ready: ready, cmd: &exec.Cmd{
		Path: path, Args: []string{watchdogName, "of", strconv.Itoa(os.Getpid())}, Dir: "/",
		ExtraFiles: []*os.File{theirs, says},
		// Beyond the reach of what is done to our group and our terminal.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}}
	if err := w.cmd.Start(); err != nil {
		_, _ = ours.Close(), ready.Close()
		return nil, err
	}
	return w, nil
}

// watch tells whom to kill. A watchdog that died is nothing to give up for: the lock is held.
func (w *watchdog) watch(group int) { _, _ = fmt.Fprintln(w.lifeline, group) }

// dismiss ends the watchdog, who has nobody to kill.
func (w *watchdog) dismiss() {
	w.watch(0)
	_, _ = w.lifeline.Close(), w.ready.Close()
	_ = w.cmd.Wait()
}

// notExecuted is why a command did not start.
type notExecuted struct{ error }

func (e notExecuted) Unwrap() error { return e.error }

// startUnder starts the command in a group of its own, which the watchdog knows before the
// command runs. It returns the group, and notExecuted if the command cannot be executed.
func startUnder(w *watchdog, path string, command, env []string) (group int, err error) {
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
	starter := &exec.Cmd{
		Path: program, Args: append([]string{starterName, path}, command...), Env: env,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		ExtraFiles: []*os.File{start, failed}, SysProcAttr: processGroup(),
	}
	err = starter.Start()
	_, _ = start.Close(), failed.Close()
	if err != nil {
		return 0, err
	}
	group = starter.Process.Pid
	if _, err := io.ReadFull(w.ready, make([]byte, 1)); err != nil {
		_ = starts.Close()
		_ = starter.Wait()
		return 0, errors.New("the command's watchdog died")
	}
	w.watch(group)
	_, _ = starts.Write([]byte{1}) // a starter that was killed shows in how it ended
	// It closes when the command is executed.
	if reason, _ := io.ReadAll(fails); len(reason) > 0 {
		_ = starter.Wait()
		w.watch(0)
		errno, _ := strconv.Atoi(string(reason))
		return 0, notExecuted{&os.PathError{Op: "exec", Path: path, Err: syscall.Errno(errno)}}
	}
	_ = starter.Process.Release() // job.changes waits for it
	return group, nil
}
