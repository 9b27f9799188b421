package main

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// processGroup puts the command into a group of its own. It dies with us, for then nobody
// renews the lease, or takes care that it ends in time. The watchdog kills the rest.
func processGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// stopSelf returns when we are continued. A signal to the thread stops it before it goes on,
// as one to the process might not.
func stopSelf() { _ = unix.Tgkill(unix.Getpid(), unix.Gettid(), syscall.SIGSTOP) }

// adoptOrphans makes us the parent of what the command leaves behind, in place of a first process that
// may not wait for the dead, as in containers.
func adoptOrphans() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// nameProcess is what ps and pkill take for the process's name.
func nameProcess(name string) { _ = os.WriteFile("/proc/self/comm", []byte(name), 0) }

// outside sends a signal to the processes of a command that are not in this group, as those of timeout are not, and
// reports whether there are any. Those of another user do not show their environment.
func (m mark) outside(group int, s syscall.Signal) (found bool) {
	proc, err := os.Open("/proc")
	if err != nil {
		return false
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if session, err := unix.Getsid(pid); err != nil || session != m.Session {
			continue
		}
		if of, err := unix.Getpgid(pid); err != nil || of == group {
			continue
		}
		p, err := os.FindProcess(pid) // before it is read, or the signal might meet another that got the number
		if err != nil {
			continue
		}
		var env []byte
		for range 3 {
			if env, err = os.ReadFile("/proc/" + name + "/environ"); len(env) > 0 || err != nil {
				break
			}
			time.Sleep(time.Millisecond) // it is dead, or in the midst of an exec
		}
		if bytes.Contains(env, []byte(m.Variable)) {
			found = true
			_ = p.Signal(s)
		}
		_ = p.Release()
	}
	return found
}

// bootTime goes on while the machine sleeps, and nobody sets it. All processes read the same.
func bootTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err) // it is in every kernel since 2.6.39
	}
	return time.Duration(t.Nano())
}
