package services

import "syscall"

// procAttr: a group of its own that ends with us; under another user if we are root, since
// PostgreSQL refuses to run as root.
func procAttr(user *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: user}
}

func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }
