//go:build unix

package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/quorumlock/redlock/admin"
)

const (
	// waitQuietly is how long run waits before it says for what, and how often a line on a
	// terminal is brought up to date.
	waitQuietly = time.Second
	// Elsewhere it looks less and less often: in a fleet many wait, and each look asks all
	// nodes. It says something if that is news, or if nothing was said for long.
	waitLooksEvery = 10 * time.Second
	waitSaysEvery  = time.Minute
)

// waiting tells what run waits for, while it does.
type waiting struct {
	log    *runLog
	keys   []string
	nodes  *admin.Nodes
	quorum int
	own    string // as others see us in the line
	start  time.Time
	until  time.Time // when a quorum may vote again; zero: not known
}

func newWaiting(log *runLog, nodes *admin.Nodes, own string) *waiting {
	return &waiting{log: log, keys: log.keys, nodes: nodes, quorum: nodes.Quorum(), own: own, start: time.Now()}
}

// waitedFor is what run waits for. It is news if it differs from the last one.
type waitedFor struct {
	key           string // of several locks; empty where there is one, or nothing is known
	holder, token string // empty: nobody, or not known
	sharedBy      int    // how many hold it together
	place, of     int    // in line; 0: not in it, or not known
	problem       string // why no lock can be had
	barred        string // nodes whose grants do not count yet, if that is the problem
}

// tell returns when ctx has ended.
func (w *waiting) tell(ctx context.Context) {
	live, pause, most := w.log.onTerminal(), waitQuietly, waitLooksEvery
	quiet := live == nil && !w.log.json && !w.log.verbose // says that there is no quorum, and nothing else
	if quiet {
		pause, most = waitLooksEvery, waitSaysEvery
	}
	var last waitedFor
	said := time.Time{}
	for sleep(ctx, pause) {
		seen, lease, ok := w.look(ctx)
		switch {
		case !ok:
		case quiet:
			if seen.problem != "" && last.problem == "" {
				w.say(seen, lease)
			}
			last = seen
		case live != nil:
			live.show(w.line(seen, lease, live.width()))
			continue
		case seen != last || time.Since(said) >= waitSaysEvery:
			last, said = seen, time.Now()
			w.say(seen, lease)
		}
		pause = min(2*pause, most)
	}
	if live != nil {
		live.clear()
	}
}

// tellOutage says, until ctx ends, that too few nodes answer for run to begin. Where nobody asked
// for such lines it says so once: a job that hangs in silence is worse than one that fails.
func (l *runLog) tellOutage(ctx context.Context) {
	const problem = "no quorum, too few of the nodes answer or serve us; 'redlock check' says which"
	live, start, pause := l.onTerminal(), time.Now(), waitQuietly
	if live == nil && !l.json && !l.verbose {
		pause = waitLooksEvery
	}
	for sleep(ctx, pause) {
		waited := time.Since(start)
		w := waiting{log: l, start: start}
		switch {
		case live != nil:
			live.show(w.line(waitedFor{problem: problem}, 0, live.width()))
			continue
		case !l.json && !l.verbose:
			fmt.Fprintln(l.w, w.line(waitedFor{problem: problem}, 0, 0))
			return
		case waited < waitSaysEvery:
			pause = waitSaysEvery
		}
		w.say(waitedFor{problem: problem}, 0)
	}
	if live != nil {
		live.clear()
	}
}

// look asks the nodes. ok is false if ctx ended. Of several locks one is waited for at a time:
// the one in whose line we are, or else, since a line may be lost, one that another holds.
func (w *waiting) look(ctx context.Context) (seen waitedFor, lease time.Duration, ok bool) {
	for _, key := range w.keys {
		here, left, ok := w.lookAt(ctx, key)
		if !ok {
			return waitedFor{}, 0, false
		}
		if len(w.keys) > 1 {
			here.key = key
		}
		if here.problem != "" || here.place > 0 {
			return here, left, true
		}
		if seen.key == "" && (len(w.keys) == 1 || here.token != "" && here.holder != w.own) {
			seen, lease = here, left
		}
	}
	return seen, lease, true
}

func (w *waiting) lookAt(ctx context.Context, key string) (seen waitedFor, lease time.Duration, ok bool) {
	s, err := w.nodes.Inspect(ctx, key)
	if ctx.Err() != nil {
		return waitedFor{}, 0, false
	}
	p := pictureOf(s, w.quorum)
	if s.Nodes == nil || p.answers() < w.quorum {
		if err != nil && s.Nodes == nil {
			return waitedFor{problem: err.Error()}, 0, true
		}
		return waitedFor{problem: "no quorum, " + p.count()}, 0, true
	}
	switch {
	case p.Held() && p.Owner != w.own: // an attempt of ours is on its way, or is being undone
		seen.holder, seen.token, seen.sharedBy, lease = p.Owner, p.Token, len(p.Holders), p.TTL
	default:
		// Nobody has it, nor have we: perhaps too few grants count. Only then that is asked.
		h := askHealth(ctx, w.nodes)
		if ctx.Err() != nil {
			return waitedFor{}, 0, false
		}
		if h.lacks() {
			return w.lacking(h), 0, true
		}
	}
	for i, x := range p.Waiters {
		if x.Owner == w.own {
			seen.place, seen.of = i+1, len(p.Waiters)
			break
		}
	}
	return seen, lease, true
}

// lacking says that too few nodes may vote, and notes until when.
func (w *waiting) lacking(h health) waitedFor {
	w.until = h.until
	return waitedFor{problem: "no quorum", barred: fmt.Sprintf("%s (not yet: %s)", h.count(), cmp.Or(h.names(), "none"))}
}

// why is the problem, with the time that it lasts yet.
func (w *waiting) why(seen waitedFor) string {
	if seen.barred == "" {
		return seen.problem
	}
	h := health{until: w.until}
	return seen.problem + h.wait(time.Now()) + ", " + seen.barred
}

func (w *waiting) say(seen waitedFor, lease time.Duration) {
	if !w.log.json {
		fmt.Fprintln(w.log.w, w.line(seen, lease, 0))
		return
	}
	e := runEvent{
		Event: "still_waiting", Key: seen.key, Holder: seen.holder, HolderToken: seen.token[:min(len(seen.token), 8)], SharedBy: seen.sharedBy, Place: seen.place, Waiting: seen.of,
		Waited: new(inSeconds(time.Since(w.start))), Error: w.why(seen),
	}
	if lease != 0 {
		e.Lease = new(inSeconds(lease))
	}
	w.log.say(e)
}

// line begins with what matters most, for a narrow terminal cuts off the rest. It is shorter where
// it has more than width characters; 0: it may have any number.
func (w *waiting) line(seen waitedFor, lease time.Duration, width int) string {
	var parts []string
	switch {
	case seen.problem != "":
		parts = append(parts, w.why(seen))
	case seen.place == 1 && seen.of == 1:
		parts = append(parts, "next in queue")
	case seen.place > 0:
		parts = append(parts, fmt.Sprintf("%s of %d in queue", ordinal(seen.place), seen.of))
	}
	which := ""
	if seen.key != "" {
		which = seen.key + " "
	}
	switch {
	case seen.sharedBy > 0:
		parts = append(parts, fmt.Sprintf("%sshared by %d", which, seen.sharedBy))
	case seen.token != "" && seen.holder != "":
		parts = append(parts, which+"held by "+seen.holder)
	case seen.token != "":
		parts = append(parts, which+"held by token "+shortToken(seen.token))
	}
	switch {
	case lease < 0:
		parts = append(parts, "without end")
	case lease > 0:
		parts = append(parts, fmt.Sprintf("lease %v", lease.Round(time.Second)))
	}
	waited := time.Since(w.start).Round(time.Second)
	text, why := fmt.Sprintf("redlock: waiting %v for %s", waited, w.log.name()), ""
	if len(parts) > 0 {
		why = ": " + strings.Join(parts, ", ")
	}
	if width > 0 && columns(text+why) > width { // what is cut off is what matters then
		text = fmt.Sprintf("redlock: %s, %v", w.log.name(), waited)
	}
	if width > 0 && columns(text+why) > width && seen.place > 0 && len(parts) > 1 { // the lease matters more than the place
		why = ": " + strings.Join(parts[1:], ", ")
	}
	return printable(text + why)
}

// liveLine is a line of a terminal that changes in place.
type liveLine struct {
	w     *os.File
	shown bool
}

// onTerminal is nil unless people see at once what is written.
func (l *runLog) onTerminal() *liveLine {
	f, ok := l.w.(*os.File)
	if !ok || l.json || !isTerminal(f) || os.Getenv("TERM") == "dumb" {
		return nil
	}
	return &liveLine{w: f}
}

// width is how many characters the line may have; 0 if that is not known.
func (l *liveLine) width() int {
	if width, _, err := term.GetSize(int(l.w.Fd())); err == nil && width > 4 {
		return width - 1
	}
	return 0
}

func (l *liveLine) show(text string) {
	// The line is the shell's while we are in the background.
	if group, err := unix.IoctlGetInt(int(l.w.Fd()), unix.TIOCGPGRP); err != nil || group != unix.Getpgrp() {
		l.shown = false
		return
	}
	if width := l.width(); width > 0 {
		text = cut(text, width)
	}
	l.shown = true
	_, _ = fmt.Fprintf(l.w, "\r%s\x1b[K", text)
}

func (l *liveLine) clear() {
	if l.shown {
		_, _ = fmt.Fprint(l.w, "\r\x1b[K")
	}
}
