//go:build unix && !linux

package main

import (
	"syscall"
	"time"
)

func processGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// stopSelf returns when we are continued. Another thread may take the signal, a moment later.
func stopSelf() {
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGSTOP)
	time.Sleep(100 * time.Millisecond)
}

// nameProcess has no way to name the process here.
func nameProcess(string) {}
