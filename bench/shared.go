package main

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// shared is memory that all contenders for the hot key see.
type shared struct {
	inside     atomic.Int64 // contenders that hold the lock now
	violations atomic.Int64 // times that one found another inside
	// count is read and written apart, as a plain counter that the lock guards: if two
	// hold the lock, increments get lost.
	count atomic.Int64

	// For handovers between processes 0 and 1:
	waiting    [2]atomic.Int64 // 1 while it waits for the lock
	releasedBy atomic.Int64    // process + 1
	releasedAt atomic.Int64    // nanoseconds since 1970
}

const sharedSize = 4096

// newShared makes such memory in a file that is named to the contenders.
func newShared(dir string) (path string, s *shared, err error) {
	path = filepath.Join(dir, "shared")
	if err := os.WriteFile(path, make([]byte, sharedSize), 0o600); err != nil {
		return "", nil, err
	}
	s, err = openShared(path)
	return path, s, err
}

func openShared(path string) (*shared, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := syscall.Mmap(int(f.Fd()), 0, sharedSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*shared)(unsafe.Pointer(&b[0])), nil
}

// close unmaps the memory.
func (s *shared) close() {
	_ = syscall.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(s)), sharedSize))
}

// visit is what the lock guards.
func (s *shared) visit() {
	if s.inside.Add(1) != 1 {
		s.violations.Add(1)
	}
	n := s.count.Load()
	s.count.Store(n + 1)
	s.inside.Add(-1)
}
