package faultproxy

import (
	"slices"
	"strings"
	"time"
)

// Command is a request as it arrived at the proxy.
type Command struct {
	Conn int // connections are numbered from 1 in the order in which they were opened
	Args []string
	At   time.Time
}

// Name is the command's name in upper case.
func (c Command) Name() string { return strings.ToUpper(c.Args[0]) }

// Stats counts since the proxy was made or reset. A chunk is what one read from
// a connection returned: roughly a write of the sender, or a packet.
type Stats struct {
	Conns         uint64 // connections opened
	RequestChunks uint64
	RequestBytes  uint64
	ReplyChunks   uint64
	ReplyBytes    uint64
}

// wireLog is guarded by the proxy's mu.
type wireLog struct {
	on       bool
	commands []Command
	counts   map[string]int // by upper-case name
	stats    Stats
}

func (l *wireLog) add(c Command) {
	if !l.on {
		return
	}
	if l.counts == nil {
		l.counts = make(map[string]int)
	}
	l.commands = append(l.commands, c)
	l.counts[c.Name()]++
}

// Record switches the log of commands on (as it is at first) or off. The log
// keeps every argument of every command until Reset, so a load test wants it off;
// then the counts of commands stand still, too. Stats go on.
func (p *Proxy) Record(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log.on = on
}

// Commands returns all commands that clients have sent since the last Reset, in
// order of arrival. They are logged before they are forwarded, so they include
// those that a fault swallowed or still holds, and those of the connections'
// handshakes. Args must not be changed.
func (p *Proxy) Commands() []Command {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.log.commands)
}

// Count returns how many of the logged commands have one of the names, in any
// case; without names, how many there are.
func (p *Proxy) Count(names ...string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(names) == 0 {
		return len(p.log.commands)
	}
	seen := make(map[string]bool, len(names))
	n := 0
	for _, name := range names {
		if name = strings.ToUpper(name); !seen[name] {
			seen[name] = true
			n += p.log.counts[name]
		}
	}
	return n
}

// CountFunc returns how many of the logged commands satisfy f.
func (p *Proxy) CountFunc(f func(Command) bool) int {
	n := 0
	for _, c := range p.Commands() {
		if f(c) {
			n++
		}
	}
	return n
}

// Stats returns the counters.
func (p *Proxy) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.stats
}

// Reset empties the log and sets the counters to zero.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log = wireLog{on: p.log.on}
}
