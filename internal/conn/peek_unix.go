//go:build linux || darwin || dragonfly || freebsd || netbsd || openbsd || solaris || illumos

package conn

import "syscall"

// peek is what quiet asks of a socket.
type peek struct {
	quiet bool
	b     [1]byte
}

func (p *peek) at(fd uintptr) {
	_, _, err := syscall.Recvfrom(int(fd), p.b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	p.quiet = err == syscall.EAGAIN || err == syscall.EWOULDBLOCK || err == syscall.EINTR
}
