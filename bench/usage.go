package main

import (
	"runtime"
	"syscall"
	"time"

	"github.com/quorumlock/redlock/internal/testing/realredis"
)

// usage is what this process and the servers have consumed so far.
type usage struct {
	client, server time.Duration // processor time
	allocs, bytes  uint64
}

func usageNow(servers []*realredis.Server) (u usage, err error) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u.allocs, u.bytes = m.Mallocs, m.TotalAlloc
	if u.server, err = cpuOf(servers); err != nil {
		return u, err
	}
	u.client, err = ownCPU()
	return u, err
}

func (u usage) minus(v usage) usage {
	return usage{u.client - v.client, u.server - v.server, u.allocs - v.allocs, u.bytes - v.bytes}
}

// ownCPU is the processor time of this process, in user and in system mode.
func ownCPU() (time.Duration, error) {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0, err
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), nil
}
