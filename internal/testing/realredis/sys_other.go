//go:build !unix

package realredis

import (
	"errors"
	"syscall"
	"time"
)

// These signals do not exist here; sending them fails.
const (
	sigStop = syscall.Signal(-1)
	sigCont = syscall.Signal(-1)
)

func procAttr() *syscall.SysProcAttr { return nil }

func killGroup(int) {}

func awaitStop(*process) error { return nil }

func cpuTime(int) (time.Duration, error) { return 0, errors.ErrUnsupported }
