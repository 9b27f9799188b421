// Package jepsen runs the library as a whole, as its users would: real servers, client processes that keep counters in files under locks, and a
// nemesis that stops, kills, cuts off and restarts them. Afterwards everything that anybody was told is checked.
package jepsen

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/quorumlock/redlock/internal/testing/clockshim"
	"github.com/quorumlock/redlock/internal/testing/history"
)

// Config is what a run is like.
type Config struct {
	For      time.Duration `json:"for_ns"`             // how long clients work and things break
	Out      string        `json:"-"`                  // folder of the report, made if it is not there
	Plain    bool          `json:"plain"`              // counters under locks alone
	Fenced   bool          `json:"fenced"`             // counters in a store that refuses stale holders
	Mixed    bool          `json:"mixed"`              // locks that are held in all ways that there are, and count nothing
	Seed     uint64        `json:"seed"`               // of the nemesis and the clients; 0: drawn
	TTL      time.Duration `json:"ttl_ns"`             // of leases
	Clients  int           `json:"clients"`            // processes
	Nodes    int           `json:"nodes"`              // servers
	Counters int           `json:"counters"`           // at a time, of each kind
	Faults   []string      `json:"faults"`             // of AllFaults
	Old      string        `json:"old,omitempty"`      // this program as an older version built it: clients of both versions take turns; empty: not
	Sabotage string        `json:"sabotage,omitempty"` // how clients or the store are broken on purpose; empty: not
	Progress io.Writer     `json:"-"`                  // nil: nobody is told
	Terminal bool          `json:"-"`                  // Progress shows one line that changes
}

func (c Config) kinds() (kinds []string) {
	if c.Plain {
		kinds = append(kinds, plain)
	}
	if c.Fenced {
		kinds = append(kinds, fenced)
	}
	if c.Mixed {
		kinds = append(kinds, mixed)
	}
	return kinds
}

func (c Config) check() error {
	var bad []string
	rule := func(ok bool, format string, args ...any) {
		if !ok {
			bad = append(bad, fmt.Sprintf(format, args...))
		}
	}
	rule(c.For > 0, "the run is to last for %v: must be above 0", c.For)
	rule(c.Plain || c.Fenced || c.Mixed, "neither plain nor fenced counters, nor mixed locks")
	rule(c.TTL >= 200*time.Millisecond && c.TTL <= time.Minute, "the TTL is %v: must be from 200ms to 1m", c.TTL)
	rule(c.Clients >= 1 && c.Clients <= 64, "%d clients: must be from 1 to 64", c.Clients)
	rule(c.Nodes >= 1 && c.Nodes <= 15, "%d nodes: must be from 1 to 15", c.Nodes)
	rule(c.Counters >= 1, "%d counters of each kind: must be 1 at least", c.Counters)
	rule(c.Old == "" || c.Plain, "clients of an older version need plain counters")
	for _, f := range c.Faults {
		rule(slices.Contains(AllFaults, f), "fault %q: must be one of %s", f, strings.Join(AllFaults, ", "))
	}
	sabotages := []string{"", noLock, noCompare, overstay, noFence, noGuard}
	rule(slices.Contains(sabotages, c.Sabotage), "sabotage %q: must be one of %s", c.Sabotage, strings.Join(sabotages[1:], ", "))
	if len(bad) > 0 {
		return errors.New(strings.Join(bad, "; "))
	}
	return nil
}

// slice is how long a counter is used before the next one: what is looked through for an order of calls stays small, however long the run.
const slice = 20 * time.Second

// Run runs, checks and writes the report to c.Out. An error means that there was no run; what a run shows is in the Report. When ctx ends, the run
// ends early and is reported.
func Run(ctx context.Context, c Config) (*Report, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	logging.Disable()
	if c.Seed == 0 {
		c.Seed = rand.Uint64N(1_000_000_000) + 1
	}
	if c.Progress == nil {
		c.Progress = io.Discard
	}
	work, err := os.MkdirTemp("", "redlock-jepsen-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	if err := errors.Join(os.MkdirAll(c.Out, 0o755), os.Mkdir(filepath.Join(work, "counters"), 0o700)); err != nil {
		return nil, err
	}
	all, err := findPrograms(c.Old)
	if err != nil {
		return nil, err
	}
	r := &Report{Config: c, Started: time.Now().UTC(), programs: all}

	var s *clockshim.Shim
	if slices.Contains(c.Faults, Clocks) {
		if s, err = clockshim.Compile(ctx, work); err != nil {
			r.Notes = append(r.Notes, "clocks were not set: "+err.Error())
		}
	}
	random := rand.New(rand.NewPCG(c.Seed, 0))
	forgetful := make(map[int]bool)
	for _, i := range random.Perm(c.Nodes)[:(c.Nodes-1)/2] {
		forgetful[i] = true
	}
	nodes, err := startNodes(ctx, c.Nodes, c.Clients, forgetful, s)
	if err != nil {
		return nil, err
	}
	defer closeNodes(nodes)
	guard := time.Duration(-1)
	if (slices.Contains(c.Faults, Nodes) || slices.Contains(c.Faults, Amnesia)) && c.Sabotage != noGuard {
		// One guard for all, longer than any lease by what the servers' clocks are apart. Nothing would be granted before the servers are so old.
		guard = max(c.TTL, 3*time.Second) + time.Second
		fmt.Fprintf(c.Progress, "seed %d: waiting until the servers are %v old\n", c.Seed, guard)
		if err := awaitAge(ctx, nodes, guard); err != nil {
			return nil, err
		}
	} else {
		fmt.Fprintf(c.Progress, "seed %d\n", c.Seed)
	}

	r.run(ctx, c, work, nodes, guard)
	if err := r.gather(work); err != nil {
		return nil, err
	}
	r.judge()
	return r, r.write()
}

// run has the clients work and the nemesis rage, and mends all in the end.
func (r *Report) run(ctx context.Context, c Config, work string, nodes []*node, guard time.Duration) {
	stderr := new(complaints)
	clk := newClock(monotonic())
	var seats []*seat
	for i := range c.Clients {
		j := job{
			Client: i, Dir: work, Zero: clk.zero, Kinds: c.kinds(), Counters: c.Counters, TTL: c.TTL, NodeTimeout: min(100*time.Millisecond, c.TTL/4),
			Guard: guard, Slice: slice, Seed: c.Seed, Sabotage: c.Sabotage, Old: c.Old != "", Beside: c.Old != "",
		}
		for _, n := range nodes {
			way, err := n.ways[i].Listen()
			r.trouble(err)
			j.Nodes, j.Ways = append(j.Nodes, n.server.Addr()), append(j.Ways, way)
		}
		seats = append(seats, &seat{job: j, programs: r.programs, stderr: stderr})
	}
	for _, s := range seats {
		r.trouble(s.start())
	}
	limited, cancel := context.WithTimeout(ctx, c.For)
	defer cancel()
	n := newNemesis(clk, c, guard, seats, nodes)
	raging := make(chan struct{})
	if len(r.Trouble) > 0 {
		cancel()
	}
	go func() {
		defer close(raging)
		if c.Old != "" {
			n.running.Go(func() { n.upgrade(limited, c.For/time.Duration(2*len(seats)+2)) })
		}
		n.rage(limited)
	}()
	r.watch(limited, clk, n)
	<-raging
	for _, nd := range nodes {
		nd.mendAll()
	}
	r.Length = clk.now()
	for _, s := range seats {
		r.trouble(s.end(10*time.Second + 5*c.TTL))
	}
	for _, s := range seats {
		r.lives = append(r.lives, s.lives...)
	}
	r.Events = n.events
	slices.SortFunc(r.Events, func(a, b Event) int { return cmp.Compare(a.From, b.From) })
	for _, err := range n.errs {
		r.trouble(err)
	}
	if text := stderr.String(); text != "" {
		r.trouble(errors.New("clients said: " + text))
	}

	// Every lease is over now, and the clients are gone: nothing may be left of them.
	time.Sleep(c.TTL + c.TTL/5 + 500*time.Millisecond)
	for _, nd := range nodes {
		left, err := nd.leftover(context.Background())
		r.trouble(err)
		r.Leftover = append(r.Leftover, left...)
	}
}

func (r *Report) trouble(err error) {
	if err != nil {
		r.Trouble = append(r.Trouble, err.Error())
	}
}

// watch shows the progress and looks at the nodes' keys until ctx ends.
func (r *Report) watch(ctx context.Context, clk clock, n *nemesis) {
	ticker := time.NewTicker(250 * time.Millisecond)
	defer ticker.Stop()
	// A reservation in line lasts for half a second, and a clock that was set back adds as much to what is there.
	longest := max(r.Config.TTL, 500*time.Millisecond) + 500*time.Millisecond
	dead := make(map[string]bool)
	every := 10 * time.Second
	if r.Config.Terminal {
		every = time.Second
	}
	for next := every; ; {
		select {
		case <-ctx.Done():
			if r.Config.Terminal {
				fmt.Fprintln(r.Config.Progress)
			}
			return
		case <-ticker.C:
		}
		if len(r.Overstaying) < 100 {
			r.Overstaying = append(r.Overstaying, overstaying(ctx, n.nodes, longest)...)
		}
		for _, s := range n.seats {
			if text := s.died(); text != "" && !dead[text] {
				dead[text] = true
				r.Trouble = append(r.Trouble, text)
			}
		}
		at := time.Duration(clk.now())
		if at < next {
			continue
		}
		next = at.Truncate(every) + every
		if r.Config.Terminal {
			fmt.Fprintf(r.Config.Progress, "\r\x1b[K%s", r.progress(at, n))
		} else {
			fmt.Fprintln(r.Config.Progress, r.progress(at, n))
		}
	}
}

func (r *Report) progress(at time.Duration, n *nemesis) string {
	var t tally
	for _, s := range n.seats {
		t.add(s.tally())
	}
	going, done := n.now()
	line := fmt.Sprintf("%v of %v: %d grants (%.0f/s), %d writes, %d stale ones refused, %d withheld, %d faults over, now %d: %s", at.Round(time.Second), r.Config.For,
		t.Grants, float64(t.Grants)/at.Seconds(), t.Written, t.Refused, t.Withheld, done, len(going), strings.Join(going, "; "))
	if r.Config.Terminal && len(line) > 180 {
		line = line[:177] + "..."
	}
	return line
}

// gather reads what the clients have written, and the counters.
func (r *Report) gather(work string) error {
	s := store{dir: filepath.Join(work, "counters")}
	for _, j := range r.lives {
		calls, writes := j.files()
		err := readFile(calls, func(f io.Reader) error {
			ops, err := history.Read(f)
			r.history = append(r.history, ops...)
			r.countVersion(j, ops)
			return err
		})
		r.trouble(err)
		err = readFile(writes, func(f io.Reader) error {
			ups, err := readUpdates(f)
			r.updates = append(r.updates, ups...)
			return err
		})
		r.trouble(err)
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	r.final = make(map[string]record)
	for _, e := range entries {
		if strings.Contains(e.Name(), ".") {
			continue // a lock, or what a killed client left of a write
		}
		if r.final[e.Name()], err = s.read(e.Name()); err != nil {
			return err
		}
	}
	slices.SortStableFunc(r.history, func(a, b history.Op) int { return cmp.Compare(a.Call, b.Call) })
	return nil
}

// readFile reads a file, if it is there: a client may be killed before it makes it.
func readFile(name string, read func(io.Reader) error) error {
	f, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := read(f); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(name), err)
	}
	return nil
}
