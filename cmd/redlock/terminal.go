//go:build unix

package main

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// terminal is the one that controls our session. Its keys and what is typed are for one
// process group, which a shell makes ours, and we make the command's. Methods of a nil one
// do nothing.
type terminal struct {
	fd    int
	modes *term.State
	// eager: the command gets the terminal without asking for it. One whose output goes into a
	// pipe may be followed by a pager, which is in our group and needs the terminal more.
	eager bool
	gave  bool // to the command
}

func openTerminal() *terminal {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	t := &terminal{fd: fd}
	t.modes, _ = term.GetState(fd) // nil: not restored
	var out unix.Stat_t
	pipe := unix.Fstat(int(os.Stdout.Fd()), &out) == nil && out.Mode&unix.S_IFMT == unix.S_IFIFO
	t.eager = term.IsTerminal(int(os.Stdin.Fd())) && !pipe
	return t
}

func (t *terminal) close() {
	if t != nil {
		_ = unix.Close(t.fd)
	}
}

func (t *terminal) foreground() int {
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	if err != nil {
		return -1
	}
	return group
}

func (t *terminal) setForeground(group int) bool {
	return unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group) == nil
}

// handOver gives the terminal to the command if it is ours to give: we may have been started
// in the background, or been put there.
func (t *terminal) handOver(group int) {
	if t != nil && t.eager && t.foreground() == unix.Getpgrp() {
		t.gave = t.setForeground(group)
	}
}

// wanted is handOver for a command that was stopped because it is not in the foreground. It
// says whether it is now.
func (t *terminal) wanted(group int) bool {
	if t.foreground() == unix.Getpgrp() {
		t.eager = true
		t.handOver(group)
	}
	return t.foreground() == group
}

// takeBack makes the terminal ours again if it is the command's, or nobody's.
func (t *terminal) takeBack(group int) {
	if t == nil || !t.gave {
		return
	}
	if fg := t.foreground(); fg == group || fg <= 0 || syscall.Kill(-fg, 0) != nil {
		t.setForeground(unix.Getpgrp())
	}
	t.gave = false
}

// restoreModes undoes what a command did to the terminal that was killed before it could.
func (t *terminal) restoreModes() {
	if t != nil && t.gave && t.modes != nil {
		_ = term.Restore(t.fd, t.modes)
	}
}
