//go:build !linux

package services

import "syscall"

func procAttr(user *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: user}
}

func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }
