package faultproxy

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// How an end of an in-memory connection has been left by its owner.
const (
	memOpen int32 = iota
	memClosed
	memReset
)

// memConn is one end of a net.Pipe that fails like a TCP connection does.
type memConn struct {
	net.Conn
	mine, theirs *atomic.Int32
	told         atomic.Bool // a reset has been reported: a socket reports it once, then EOF
}

func newMemPipe() (near, far *memConn) {
	a, b := net.Pipe()
	var sa, sb atomic.Int32
	return &memConn{Conn: a, mine: &sa, theirs: &sb}, &memConn{Conn: b, mine: &sb, theirs: &sa}
}

// newDeadConn returns a connection that is over at once.
func newDeadConn() net.Conn {
	near, far := newMemPipe()
	far.Close()
	return near
}

// mark leaves word for the other end how this one is going to be closed.
func (c *memConn) mark(state int32) { c.mine.CompareAndSwap(memOpen, state) }

func (c *memConn) Close() error {
	c.mark(memClosed)
	return c.Conn.Close()
}

func (c *memConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	switch {
	case errors.Is(err, io.ErrClosedPipe):
		err = c.opError("read", net.ErrClosed)
	case err == io.EOF && c.theirs.Load() == memReset && c.told.CompareAndSwap(false, true):
		err = c.opError("read", syscall.ECONNRESET)
	}
	return n, err
}

func (c *memConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if errors.Is(err, io.ErrClosedPipe) {
		switch {
		case c.mine.Load() != memOpen:
			err = c.opError("write", net.ErrClosed)
		case c.theirs.Load() == memReset:
			err = c.opError("write", syscall.ECONNRESET)
		default:
			err = c.opError("write", syscall.EPIPE)
		}
	}
	return n, err
}

// A socket takes deadlines as long as its owner has not closed it; a pipe refuses
// them when the other end is gone, which would hide the cause.

func (c *memConn) SetDeadline(t time.Time) error     { return c.unlessGone(c.Conn.SetDeadline(t)) }
func (c *memConn) SetReadDeadline(t time.Time) error { return c.unlessGone(c.Conn.SetReadDeadline(t)) }
func (c *memConn) SetWriteDeadline(t time.Time) error {
	return c.unlessGone(c.Conn.SetWriteDeadline(t))
}

func (c *memConn) unlessGone(err error) error {
	switch {
	case err == nil || c.mine.Load() == memOpen:
		return nil
	case errors.Is(err, io.ErrClosedPipe):
		return c.opError("set", net.ErrClosed)
	}
	return err
}

func (c *memConn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "mem", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// SyscallConn exists for clients that peek at the socket of an idle connection before they
// use it again: go-redis by Read, the library by Control. Without it every connection that died in
// the pool would cost its next user an error, which it does not with TCP.
func (c *memConn) SyscallConn() (syscall.RawConn, error) { return rawMemConn{c}, nil }

type rawMemConn struct{ c *memConn }

// Read reports whether the other end is still there. There is no descriptor to
// call f with, and no data to be found: a pipe has no buffer.
func (r rawMemConn) Read(func(fd uintptr) bool) error {
	switch r.c.theirs.Load() {
	case memClosed:
		return io.EOF
	case memReset:
		return syscall.ECONNRESET
	}
	return nil
}

func (r rawMemConn) Control(func(fd uintptr)) error {
	if r.c.mine.Load() != memOpen {
		return net.ErrClosed
	}
	return r.Read(nil)
}

func (rawMemConn) Write(func(fd uintptr) bool) error { return errors.ErrUnsupported }
