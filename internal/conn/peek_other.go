//go:build !(linux || darwin || dragonfly || freebsd || netbsd || openbsd || solaris || illumos)

package conn

// peek cannot look at a socket here without reading.
type peek struct{ quiet bool }

func (p *peek) at(uintptr) { p.quiet = true }
