package main

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// processGroup puts the command into a group of its own. It dies with us, for then nobody
// renews the lease, or takes care that it ends in time. The watchdog kills the rest.
func processGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// stopSelf returns when we are continued. A signal to the thread stops it before it goes on,
// as one to the process might not.
func stopSelf() { _ = unix.Tgkill(unix.Getpid(), unix.Gettid(), syscall.SIGSTOP) }

// adoptOrphans makes us the parent of what the command leaves behind, in place of a first process that
// may not wait for the dead, as in containers.
func adoptOrphans() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// nameProcess is what ps and pkill take for the process's name.
func nameProcess(name string) { _ = os.WriteFile("/proc/self/comm", []byte(name), 0) }

// bootTime goes on while the machine sleeps, and nobody sets it. All processes read the same.
func bootTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err) // it is in every kernel since 2.6.39
	}
	return time.Duration(t.Nano())
}
