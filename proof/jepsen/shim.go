package jepsen

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/quorumlock/redlock/internal/realredis"
)

// shimSource shifts the wall clock of a server by the nanoseconds that a file holds.
const shimSource = `
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long long shift(void) {
	long long ns = 0;
	FILE *f = fopen(getenv("SHIM_FILE"), "r");
	if (f) { if (fscanf(f, "%lld", &ns) != 1) ns = 0; fclose(f); }
	return ns;
}
static int now(struct timespec *ts) {
	int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
	int r = real(CLOCK_REALTIME, ts);
	long long ns = ts->tv_sec * 1000000000LL + ts->tv_nsec + shift();
	ts->tv_sec = ns / 1000000000LL;
	ts->tv_nsec = ns % 1000000000LL;
	return r;
}
int gettimeofday(struct timeval *tv, void *tz) {
	struct timespec ts;
	int r = now(&ts);
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return r;
}
int clock_gettime(clockid_t id, struct timespec *ts) {
	int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
	return id == CLOCK_REALTIME ? now(ts) : real(id, ts);
}
time_t time(time_t *t) {
	struct timespec ts;
	now(&ts);
	if (t) *t = ts.tv_sec;
	return ts.tv_sec;
}
`

// shim is a library that shifts the clocks of servers.
type shim struct{ dir, lib string }

// newShim compiles it into a folder. It needs a C compiler, cc.
func newShim(dir string) (*shim, error) {
	src, lib := filepath.Join(dir, "shim.c"), filepath.Join(dir, "shim.so")
	if err := os.WriteFile(src, []byte(shimSource), 0o600); err != nil {
		return nil, err
	}
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-O1", "-o", lib, src, "-ldl").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compiling the clock shim: %w %s", err, out)
	}
	return &shim{dir, lib}, nil
}

// server is what starts a server under the shim, and what sets its clock off by an amount.
func (s *shim) server(i int) (realredis.Option, func(time.Duration) error, error) {
	file := filepath.Join(s.dir, "shift-"+strconv.Itoa(i))
	set := func(d time.Duration) error {
		if err := os.WriteFile(file+".new", []byte(strconv.FormatInt(int64(d), 10)), 0o600); err != nil {
			return err
		}
		return os.Rename(file+".new", file)
	}
	return realredis.Env("LD_PRELOAD="+s.lib, "SHIM_FILE="+file), set, set(0)
}
