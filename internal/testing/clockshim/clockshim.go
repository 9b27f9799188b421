// Package clockshim starts programs, such as a redis-server, under a wall clock that can
// be set while they run. It works by LD_PRELOAD, so on Linux alone, and needs a C
// compiler.
package clockshim

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

//go:embed shim.c.txt
var source []byte

// Shim is a clock that is shared by all programs that are started under it.
type Shim struct{ lib, file string }

// Another is a clock of its own beside the first, with a name of its own.
func (s *Shim) Another(name string) (*Shim, error) {
	other := &Shim{s.lib, s.file + "-" + name}
	return other, other.Step(0)
}

// Compile makes a shim whose files are in dir. It fails where there is no C compiler
// called cc, or none that can make a shared library.
func Compile(ctx context.Context, dir string) (*Shim, error) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		return nil, fmt.Errorf("clockshim: no C compiler: %w", err)
	}
	src := filepath.Join(dir, "shim.c")
	if err := os.WriteFile(src, source, 0o600); err != nil {
		return nil, err
	}
	s := &Shim{filepath.Join(dir, "shim.so"), filepath.Join(dir, "shift")}
	if out, err := exec.CommandContext(ctx, cc, "-shared", "-fPIC", "-O1", "-o", s.lib, src, "-ldl").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("clockshim: %w: %s", err, out)
	}
	return s, s.Step(0)
}

// Env is the environment that puts a program under the shim.
func (s *Shim) Env() []string { return []string{"LD_PRELOAD=" + s.lib, "SHIM_FILE=" + s.file} }

// Step makes the wall clock of all its programs differ by d from the machine's.
func (s *Shim) Step(d time.Duration) error {
	// By renaming, so that nobody reads half a number.
	next := s.file + ".new"
	if err := os.WriteFile(next, []byte(strconv.FormatInt(int64(d), 10)), 0o600); err != nil {
		return err
	}
	return os.Rename(next, s.file)
}
