//go:build unix && !linux

package realredis

import (
	"errors"
	"syscall"
	"time"
)

// There is no portable way to have a child killed with us: here, a server
// survives a test binary that is killed.
func procAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

func awaitStop(*process) error { return nil }

func cpuTime(int) (time.Duration, error) { return 0, errors.ErrUnsupported }
