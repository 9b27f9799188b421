//go:build unix && !linux

package main

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stopSelf returns when we are continued. Another thread may take the signal, a moment later.
func stopSelf() {
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGSTOP)
	time.Sleep(100 * time.Millisecond)
}

// adoptOrphans has no way to do so here: they are the first process's children.
func adoptOrphans() {}

// nameProcess has no way to name the process here.
func nameProcess(string) {}

// living has no way to find them here: the command is its group.
func (descent) living(int) ([]proc, bool) { return nil, false }

func (descent) children(map[int]bool, func(proc)) {}

func (descent) forksOn(int) bool { return false }

func (proc) signal(syscall.Signal) error { return syscall.ENOSYS }

func lookAt(int) (proc, bool) { return proc{}, false }

// childless says nothing here.
func childless() bool { return true }

// bootTime goes on while the machine sleeps, on macOS at least, and nobody sets it.
func bootTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // POSIX has it
	}
	return time.Duration(t.Nano())
}
