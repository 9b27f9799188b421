//go:build unix && !linux

package main

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func processGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// stopSelf returns when we are continued. Another thread may take the signal, a moment later.
func stopSelf() {
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGSTOP)
	time.Sleep(100 * time.Millisecond)
}

// adoptOrphans has no way to do so here: the first process waits for them.
func adoptOrphans() {}

// nameProcess has no way to name the process here.
func nameProcess(string) {}

// outside has no way to find them here.
func (mark) outside(int, syscall.Signal) bool { return false }

// bootTime goes on while the machine sleeps, on macOS at least, and nobody sets it.
func bootTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // POSIX has it
	}
	return time.Duration(t.Nano())
}
