//go:build unix

package realredis

import "syscall"

const (
	sigStop = syscall.SIGSTOP
	sigCont = syscall.SIGCONT
)

func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }
