package realredis

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// procAttr makes the kernel kill the server when we die. A group of its own
// keeps the Ctrl-C of a terminal from reaching the servers before the tests,
// and lets killGroup find forked children.
func procAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// awaitStop waits until the process is stopped: SIGSTOP takes effect some time
// after kill(2) has returned, and until then the process executes commands.
func awaitStop(p *process) error {
	for p.alive() {
		s, err := state(p.Pid)
		if err != nil {
			return err
		}
		if s == "T" || s == "t" {
			return nil
		}
		time.Sleep(50 * time.Microsecond)
	}
	return os.ErrProcessDone
}

// cpuTime reads the clock which counts the processor time of a process. The
// times in /proc/PID/stat come in units of 10 ms, too coarse for a benchmark
// in which a server works for a few of them.
func cpuTime(pid int) (time.Duration, error) {
	const cpuclockSched = 2 // see clock_getcpuclockid(3)
	clock := ^pid<<3 | cpuclockSched
	var ts syscall.Timespec
	_, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, uintptr(clock), uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		return 0, os.NewSyscallError("clock_gettime", errno)
	}
	return time.Duration(ts.Nano()), nil
}

// state returns the state letter of a process. It follows the name, which
// itself may hold spaces and parentheses.
func state(pid int) (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) == 0 {
		return "", fmt.Errorf("realredis: unexpected /proc/%d/stat: %q", pid, b)
	}
	return string(fields[0]), nil
}
