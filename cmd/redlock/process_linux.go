package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// processGroup puts the command into a group of its own. It dies with us, for then nobody
// renews the lease, or takes care that it ends in time.
func processGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// stopSelf returns when we are continued. A signal to the thread stops it before it goes on,
// as one to the process might not.
func stopSelf() { _ = unix.Tgkill(unix.Getpid(), unix.Gettid(), syscall.SIGSTOP) }
