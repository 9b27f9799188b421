package main

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stopSelf returns when we are continued. A signal to the thread stops it before it goes on,
// as one to the process might not.
func stopSelf() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), syscall.SIGSTOP)
}

// adoptOrphans makes us the parent of every process below us whose own parent has ended, unless it has one
// in between that does the same. So what descends from us does so as long as it lives.
func adoptOrphans() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// nameProcess is what ps and pkill take for the process's name.
func nameProcess(name string) { _ = os.WriteFile("/proc/self/comm", []byte(name), 0) }

// lookAt reads what there is under a number now.
func lookAt(pid int) (p proc, found bool) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return proc{}, false
	}
	buffer := make([]byte, 1024) // longer than it is
	n, _ := unix.Read(fd, buffer)
	_ = unix.Close(fd)
	text := buffer[:max(n, 0)]
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')') // the name may have any bytes
	if open < 0 || end < open {
		return proc{}, false
	}
	f := bytes.Fields(text[end+1:])
	if len(f) < 20 {
		return proc{}, false
	}
	number := func(i int) int { n, _ := strconv.Atoi(string(f[i])); return n }
	// A process whose first thread has ended is called dead, and may have others.
	ended := (f[0][0] == 'Z' || f[0][0] == 'X') && number(17) <= 1
	return proc{
		pid: pid, name: string(text[open+1 : end]), alive: !ended,
		parent: number(1), group: number(2), session: number(3), start: number(19),
	}, true
}

// living are the processes of a descent that have not ended, of one session or of anySession. It reports
// whether processes can be looked at.
func (d descent) living(session int) (found []proc, looked bool) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, false
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	// In a container /proc may still be that of the world around it, with other numbers.
	if self, _ := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return nil, false
	}
	known := map[int]kinship{}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if session != anySession {
			if of, err := unix.Getsid(pid); err != nil || of != session {
				continue
			}
		}
		p, there := lookAt(pid)
		if !there || !p.alive {
			continue
		}
		if k := d.kin(p, known); k.ours {
			p.inner = k.inner
			found = append(found, p)
		}
	}
	return found, true
}

// children calls visit with each child of this process that is of the descent, at once, but for those that it is told
// to leave out. Where the kernel was built without such a list there are none.
func (d descent) children(but map[int]bool, visit func(proc)) {
	self := strconv.Itoa(d.root)
	list, _ := os.ReadFile("/proc/self/task/" + self + "/children") // orphans come to the first thread
	for _, number := range bytes.Fields(list) {
		pid, _ := strconv.Atoi(string(number))
		if but[pid] {
			continue
		}
		if p, found := lookAt(pid); found && p.parent == d.root && p.start >= d.since && p.alive {
			visit(p)
		}
	}
}

// forksOn reports whether a process that was adopted is of a session, or may be: one that forks and ends, again and
// again, need not be there when a look at all of /proc gets to it. What it leaves is adopted before it is dead.
func (d descent) forksOn(session int) bool {
	root := strconv.Itoa(d.root)
	dead := map[int]bool{}
	for range 1000 {
		before := len(dead)
		list, _ := os.ReadFile("/proc/" + root + "/task/" + root + "/children")
		for _, number := range bytes.Fields(list) {
			pid, _ := strconv.Atoi(string(number))
			p, found := lookAt(pid)
			switch {
			case !found || !p.alive:
				dead[pid] = true
			case p.parent == d.root && p.start >= d.since && p.session == session:
				return true
			}
		}
		if len(dead) == before {
			return false
		}
	}
	return true
}

// kinship is whether a process descends from the root, and by way of another command's watchdog.
type kinship struct {
	ours, inner bool
	start       int
	name        string
}

func (d descent) kin(p proc, known map[int]kinship) (k kinship) {
	if k, found := known[p.pid]; found && k.start == p.start {
		return k
	}
	defer func() {
		k.start, k.name = p.start, p.name
		known[p.pid] = k
	}()
	for range 10 {
		switch {
		case p.parent == d.root:
			return kinship{ours: p.start >= d.since}
		case p.parent == 0 || p.pid == d.root:
			return kinship{}
		}
		above, found := known[p.parent]
		if !found {
			var parent proc
			if parent, found = lookAt(p.parent); found {
				above = d.kin(parent, known)
			}
		}
		if found && above.start <= p.start {
			return kinship{ours: above.ours, inner: above.inner || above.name == watchdogName}
		}
		// Its parent ended meanwhile, or has left its number to a younger one.
		delete(known, p.parent)
		if p, found = lookAt(p.pid); !found {
			break
		}
	}
	return kinship{}
}

// signal does not meet another process that has the number now.
func (p proc) signal(s syscall.Signal) error {
	// os.FindProcess forks at its first call, for which there may be no process left.
	handle, err := unix.PidfdOpen(p.pid, 0)
	if err == nil {
		defer func() { _ = unix.Close(handle) }()
	}
	if now, found := lookAt(p.pid); !found || now.start != p.start {
		return os.ErrProcessDone
	}
	if err != nil { // before Linux 5.3
		return unix.Kill(p.pid, s)
	}
	return unix.PidfdSendSignal(handle, s, nil, 0)
}

// childless reports whether nothing at all descends from us: what does, is our child, or is a child of what is.
func childless() bool {
	return errors.Is(unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil), syscall.ECHILD)
}

// bootTime goes on while the machine sleeps, and nobody sets it. All processes read the same.
func bootTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err) // it is in every kernel since 2.6.39
	}
	return time.Duration(t.Nano())
}
