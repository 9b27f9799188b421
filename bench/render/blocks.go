package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/quorumlock/redlock/bench/results"
)

// blocks are what pages may ask for, in Markdown. A block for which the run has nothing is
// an error: a page must not lose a table because a scenario was left out.
var blocks = map[string]func(*results.Report) string{
	"run":          runBlock,
	"summary":      summaryBlock,
	"worse":        worseBlock,
	"free":         freeBlock,
	"latency":      latencyBlock,
	"cost":         costBlock,
	"fenced":       fencedBlock,
	"nodes":        nodesBlock,
	"faults":       faultsBlock,
	"round-trips":  tripsBlock,
	"renewal":      renewalBlock,
	"hot":          hotBlock,
	"hung":         hungBlock,
	"handovers":    handoversBlock,
	"soak":         soakBlock,
	"compare-free": compareFreeBlock,
	"compare-hot":  compareHotBlock,
}

func block(r *results.Report, name string) (string, error) {
	make, ok := blocks[name]
	if !ok {
		return "", fmt.Errorf("there is no block %q; there are %s", name, strings.Join(slices.Sorted(maps.Keys(blocks)), ", "))
	}
	text := make(r)
	if text == "" {
		return "", fmt.Errorf("the run has nothing for block %q", name)
	}
	return "\n" + text + "\n", nil
}

// grid is a table; without rows it is nothing.
type grid struct {
	head []string
	rows [][]string
}

func (g *grid) add(cells ...string) { g.rows = append(g.rows, cells) }

func (g *grid) String() string {
	if len(g.rows) == 0 {
		return ""
	}
	var b strings.Builder
	line := func(cells []string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	line(g.head)
	b.WriteString("|---|" + strings.Repeat("---:|", len(g.head)-1) + "\n")
	for _, row := range g.rows {
		line(row)
	}
	return b.String()
}

// free finds a row of scenario 1.
func free(r *results.Report, n int, candidate string) *results.Cycle {
	for _, row := range r.Cycles {
		if row.Scenario == 1 && row.Goroutines == n && row.Candidate == candidate {
			return row
		}
	}
	return nil
}

// freeCounts are the numbers of goroutines of scenario 1.
func freeCounts(r *results.Report) (all []int) {
	for _, row := range r.Cycles {
		if row.Scenario == 1 && !slices.Contains(all, row.Goroutines) {
			all = append(all, row.Goroutines)
		}
	}
	return all
}

// times is how often one is the other: the median over the rounds, and its range.
func times(row, base *results.Cycle) string {
	if row == nil || base == nil {
		return "-"
	}
	q := results.RatioOf(row.Rounds, base.Rounds)
	if q.Median == 0 {
		return "-"
	}
	return fmt.Sprintf("%s× (%s–%s)", two(q.Median), two(q.Min), two(q.Max))
}

// two digits are all that a ratio has.
func two(v float64) string {
	if v < 9.95 {
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

func share(row, base *results.Cycle) string {
	if row == nil || base == nil {
		return "-"
	}
	q := results.RatioOf(row.Rounds, base.Rounds)
	return fmt.Sprintf("%.0f %% (%.0f–%.0f)", 100*q.Median, 100*q.Min, 100*q.Max)
}

// quotient of two figures that have no rounds.
func quotient(a, b float64) string {
	if b == 0 {
		return "-"
	}
	return two(a/b) + "×"
}

func runBlock(r *results.Report) string {
	m := r.Meta
	var b strings.Builder
	if m.Quick {
		b.WriteString("**These figures are of a smoke run and mean nothing.**\n\n")
	}
	fmt.Fprintf(&b, "Run on %s in %v: %s on %s, %d cores for the client and all servers, %s", m.Date, m.Took.Round(time.Second), m.Go, m.OS, m.CPUs, m.ServerName())
	for _, name := range slices.Sorted(maps.Keys(m.Servers)) {
		fmt.Fprintf(&b, ", %s %s", name, m.Servers[name])
	}
	fmt.Fprintf(&b, ". %d rounds of %v for each candidate.\n", m.Rounds, m.Window)
	for i, path := range slices.Sorted(maps.Keys(m.Modules)) {
		sep := ", "
		if i == 0 {
			sep = "Libraries: "
		}
		b.WriteString(sep + strings.TrimPrefix(path, "github.com/") + " " + m.Modules[path])
	}
	b.WriteString(".\n")
	return b.String()
}

// most is the greatest number of goroutines up to 128 that was run.
func most(r *results.Report) (n int) {
	for _, g := range freeCounts(r) {
		if g <= 128 {
			n = max(n, g)
		}
	}
	return n
}

var summaryCandidates = []string{"redlock", "redsync", "rueidislock-3", "bsm"}

// summaryBlock sets the libraries side by side in what users ask first.
func summaryBlock(r *results.Report) string {
	g := grid{head: []string{"", "redlock (this)", "redsync", "rueidislock", "bsm/redislock"}}
	g.add("servers", "5 independent", "5 independent", "1, majority of 5 keys", "1")
	row := func(label string, cell func(candidate string) string) {
		cells := []string{label}
		for _, name := range summaryCandidates {
			cells = append(cells, cell(name))
		}
		g.rows = append(g.rows, cells)
	}
	for _, n := range []int{1, most(r)} {
		row(fmt.Sprintf("lock and release, %d at once, cycles/s", n), func(name string) string {
			if c := free(r, n, name); c != nil {
				return rounded(c.PerSecond)
			}
			return "-"
		})
	}
	row("median acquire, 1 at once", func(name string) string {
		if c := free(r, 1, name); c != nil {
			return span(c.Acquire.P50)
		}
		return "-"
	})
	for _, point := range faultPoints(r) {
		if !strings.HasPrefix(point, "1 of 5 nodes hung") {
			continue
		}
		row("one server hung, 16 at once, cycles/s", func(name string) string {
			if c := r.Cycle(3, point, name); c != nil {
				return rounded(c.PerSecond)
			}
			return "none: it is the only one"
		})
	}
	shape := [2]int{8, 16}
	row("one key, 8 × 16 goroutines: turns/s", hotCell(r, shape, func(h *results.Hot) string { return rounded(h.PerSecond) }))
	row("... 99th percentile of the wait", hotCell(r, shape, func(h *results.Hot) string { return span(h.Wait.P99) }))
	row("... turns of a goroutine, fewest and most", hotCell(r, shape, func(h *results.Hot) string { return fmt.Sprintf("%d and %d", h.Least, h.Most) }))
	return g.String()
}

func hotCell(r *results.Report, shape [2]int, write func(*results.Hot) string) func(string) string {
	return func(name string) string {
		if h := hotRow(r, shape, 0, name); h != nil {
			return write(h)
		}
		return "-"
	}
}

// worseBlock says where others are ahead, as far as the run shows it.
func worseBlock(r *results.Report) string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, "- "+format+"\n", args...) }
	this, bsm := free(r, 1, "redlock"), free(r, 1, "bsm")
	if this != nil && bsm != nil && this.Acquire.P50 > bsm.Acquire.P50 {
		say("A lock on one server is taken sooner: bsm/redislock needs %s where this needs %s for five nodes (%s).",
			span(bsm.Acquire.P50), span(this.Acquire.P50), quotient(float64(this.Acquire.P50), float64(bsm.Acquire.P50)))
		say("It also costs less: %s of server CPU for a cycle against %s for all five.", span(bsm.ServerCPU), span(this.ServerCPU))
	}
	if bare := free(r, most(r), "bare"); bare != nil {
		say("With %d goroutines the bare lane, which has no queue and no guards, makes %s cycles/s where this makes %s: the difference is what those cost.",
			most(r), rounded(bare.PerSecond), rounded(free(r, most(r), "redlock").PerSecond))
	}
	if fenced := free(r, most(r), "redlock-fenced"); fenced != nil {
		plain := free(r, most(r), "redlock")
		say("Fencing tokens cost: %s cycles/s instead of %s with %d goroutines, and %s of server CPU instead of %s.",
			rounded(fenced.PerSecond), rounded(plain.PerSecond), most(r), span(fenced.ServerCPU), span(plain.ServerCPU))
	}
	shape := [2]int{8, 16}
	mine := hotRow(r, shape, 0, "redlock")
	var faster []string
	for _, name := range []string{"redsync", "rueidislock-3", "bsm"} {
		if other := hotRow(r, shape, 0, name); mine != nil && other != nil && other.PerSecond > mine.PerSecond {
			faster = append(faster, fmt.Sprintf("%s %s, between %d and %d for a goroutine", nameOf(name), rounded(other.PerSecond), other.Least, other.Most))
		}
	}
	if faster != nil {
		say("Order costs turns. On one key for 8 × 16 goroutines this makes %s turns/s, between %d and %d for a goroutine; %s.",
			rounded(mine.PerSecond), mine.Least, mine.Most, strings.Join(faster, "; "))
	}
	for _, name := range []string{"rueidislock-3", "bsm"} {
		for _, h := range r.Handovers {
			if h.Candidate != name {
				continue
			}
			for _, m := range r.Handovers {
				if m.Candidate == "redlock" && m.RoundTrip == h.RoundTrip && h.Latency.P50 > 0 && h.Latency.P50 < m.Latency.P50 {
					say("With one waiter and a PING of %s, %s hands the lock over in %s, this in %s.", span(h.RoundTrip), nameOf(name), span(h.Latency.P50), span(m.Latency.P50))
				}
			}
		}
	}
	return b.String()
}

func freeBlock(r *results.Report) string {
	g := grid{head: []string{"goroutines", "redlock", "redsync", "rueidislock", "bare lane", "times redsync", "times rueidislock", "share of the bare lane"}}
	for _, n := range freeCounts(r) {
		cells := []string{fmt.Sprint(n)}
		for _, name := range []string{"redlock", "redsync", "rueidislock-3", "bare"} {
			cells = append(cells, rateOf(free(r, n, name)))
		}
		this := free(r, n, "redlock")
		g.add(append(cells, times(this, free(r, n, "redsync")), times(this, free(r, n, "rueidislock-3")), share(this, free(r, n, "bare")))...)
	}
	return g.String()
}

func rateOf(c *results.Cycle) string {
	if c == nil {
		return "-"
	}
	return rounded(c.PerSecond)
}

func latencyBlock(r *results.Report) string {
	g := grid{head: []string{"median acquire (99th percentile)", "redlock", "redsync", "rueidislock", "bsm, one server", "bare lane"}}
	for _, n := range freeCounts(r) {
		cells := []string{goroutines(n)}
		for _, name := range []string{"redlock", "redsync", "rueidislock-3", "bsm", "bare"} {
			c := free(r, n, name)
			if c == nil {
				cells = append(cells, "-")
				continue
			}
			cells = append(cells, fmt.Sprintf("%s (%s)", span(c.Acquire.P50), span(c.Acquire.P99)))
		}
		g.rows = append(g.rows, cells)
	}
	return g.String()
}

func goroutines(n int) string {
	if n == 1 {
		return "1 goroutine"
	}
	return fmt.Sprintf("%d goroutines", n)
}

// costCounts are those goroutines of 1, 16 and 128 that were run.
func costCounts(r *results.Report) []int {
	return slices.DeleteFunc([]int{1, 16, 128}, func(n int) bool { return free(r, n, "redlock") == nil })
}

func costBlock(r *results.Report) string {
	g := grid{head: []string{"per cycle", "client CPU", "CPU of all servers", "allocations", "bytes"}}
	for _, n := range costCounts(r) {
		for _, name := range []string{"redlock", "redlock-fenced", "redsync", "rueidislock-3", "bsm", "bare"} {
			if c := free(r, n, name); c != nil {
				g.add(fmt.Sprintf("%s, %d at once", nameOf(name), n), span(c.ClientCPU), span(c.ServerCPU), count(c.Allocs), count(c.Bytes))
			}
		}
	}
	return g.String()
}

func fencedBlock(r *results.Report) string {
	g := grid{head: []string{"goroutines", "cycles/s", "fenced", "server CPU per cycle", "fenced", "median acquire", "fenced"}}
	for _, n := range freeCounts(r) {
		p, f := free(r, n, "redlock"), free(r, n, "redlock-fenced")
		if p != nil && f != nil {
			g.add(fmt.Sprint(n), rounded(p.PerSecond), fmt.Sprintf("%s (%s)", rounded(f.PerSecond), times(f, p)),
				span(p.ServerCPU), fmt.Sprintf("%s (%s)", span(f.ServerCPU), quotient(float64(f.ServerCPU), float64(p.ServerCPU))),
				span(p.Acquire.P50), span(f.Acquire.P50))
		}
	}
	return g.String()
}

func nodesBlock(r *results.Report) string {
	g := grid{head: []string{"nodes", "redlock", "redsync", "bare lane", "times redsync", "share of the bare lane"}}
	for _, row := range r.Cycles {
		if row.Scenario == 2 && row.Candidate == "redlock" {
			sync, bare := r.Cycle(2, row.Point, "redsync"), r.Cycle(2, row.Point, "bare")
			g.add(count(row.X), rounded(row.PerSecond), rateOf(sync), rateOf(bare), times(row, sync), share(row, bare))
		}
	}
	return g.String()
}

func faultsBlock(r *results.Report) string {
	g := grid{head: []string{"", "redlock", "of healthy", "redsync", "of healthy", "redsync, fail fast", "of healthy"}}
	for _, point := range faultPoints(r) {
		cells := []string{faultName(point)}
		for _, name := range faultCandidates {
			c := r.Cycle(3, point, name)
			if c == nil {
				cells = append(cells, "-", "-")
				continue
			}
			of := results.RatioOf(c.Rounds, c.Healthy)
			cells = append(cells, rounded(c.PerSecond), fmt.Sprintf("%.0f %%", 100*of.Median))
		}
		g.rows = append(g.rows, cells)
	}
	return g.String()
}

func tripsBlock(r *results.Report) string {
	g := grid{head: []string{"link (PING), goroutines", "redlock", "in round trips", "redsync", "in round trips", "bare lane", "in round trips"}}
	for _, link := range r.Links {
		for _, row := range r.Cycles {
			if row.Scenario != 4 || row.Candidate != "redlock" || !strings.HasPrefix(row.Point, fmt.Sprintf("link of %v ", link.Asked)) {
				continue
			}
			cells := []string{fmt.Sprintf("%s, %d", span(link.Measured), row.Goroutines)}
			for _, name := range []string{"redlock", "redsync", "bare"} {
				c := r.Cycle(4, row.Point, name)
				if c == nil {
					cells = append(cells, "-", "-")
					continue
				}
				cells = append(cells, span(c.Acquire.P50), fmt.Sprintf("%.1f", float64(c.Acquire.P50)/float64(link.Measured)))
			}
			g.rows = append(g.rows, cells)
		}
	}
	return g.String()
}

func renewalBlock(r *results.Report) string {
	g := grid{head: []string{"", "locks", "client CPU", "CPU of all servers", "commands/s", "heap per lock", "renewals", "late", "lost"}}
	for _, row := range r.Renewal {
		renewals, late := count(float64(row.Renewals)), fmt.Sprint(row.Late)
		if !row.ToldByTheLibrary {
			renewals, late = "not told", "not told"
		}
		g.add(nameOf(row.Candidate), count(float64(row.Held)), percent(row.ClientCPU), percent(row.ServerCPU),
			rounded(row.PerSecond.Commands), count(row.HeapPerLock/1000)+" KB", renewals, late, fmt.Sprint(row.Lost))
	}
	return g.String()
}

func percent(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }

func hotBlock(r *results.Report) string {
	g := grid{head: []string{"processes × goroutines", "turns/s", "wait: median", "99th percentile", "longest", "fewest and most turns", "commands per turn"}}
	for _, s := range hotShapesOf(r) {
		for _, name := range hotCandidates {
			if h := hotRow(r, s, 0, name); h != nil {
				g.add(hotCells(shapeName(s)+", "+nameOf(name), h)...)
			}
		}
	}
	return g.String()
}

func hotCells(label string, h *results.Hot) []string {
	return []string{label, rounded(h.PerSecond), span(h.Wait.P50), span(h.Wait.P99), span(h.Wait.Max), fmt.Sprintf("%d and %d", h.Least, h.Most), count(h.Commands)}
}

func hotShapesOf(r *results.Report) (all [][2]int) {
	for _, h := range r.Hot {
		if s := [2]int{h.Processes, h.Goroutines}; !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}

func hungBlock(r *results.Report) string {
	g := grid{head: []string{"redlock, nodes of five that hang", "turns/s", "wait: median", "99th percentile", "longest", "fewest and most turns", "commands per turn"}}
	for _, h := range r.Hot {
		if h.Down == 0 {
			continue
		}
		s := [2]int{h.Processes, h.Goroutines}
		if healthy := hotRow(r, s, 0, h.Candidate); healthy != nil && h.Down == 1 {
			g.add(hotCells(shapeName(s)+", none", healthy)...)
		}
		g.add(hotCells(fmt.Sprintf("%s, %d", shapeName(s), h.Down), &h)...)
	}
	return g.String()
}

func handoversBlock(r *results.Report) string {
	g := grid{head: []string{"one waiter in another process", "PING", "median", "99th percentile", "longest", "median in round trips"}}
	for _, h := range r.Handovers {
		g.add(nameOf(h.Candidate), span(h.RoundTrip), span(h.Latency.P50), span(h.Latency.P99), span(h.Latency.Max), count(float64(h.Latency.P50)/float64(max(h.RoundTrip, 1))))
	}
	return g.String()
}

func soakBlock(r *results.Report) string {
	if len(r.Soak) == 0 {
		return ""
	}
	low, high := r.Soak[0], r.Soak[0]
	for _, row := range r.Soak {
		if row.LiveHeap < low.LiveHeap {
			low = row
		}
		if row.LiveHeap > high.LiveHeap {
			high = row
		}
	}
	last := r.Soak[len(r.Soak)-1]
	mb := func(v uint64) string { return count(float64(v) / 1e6) }
	return fmt.Sprintf("Over %s cycles the live heap stayed between %s and %s MB, and was %s MB at the end, with %d goroutines in the process.\n",
		count(float64(last.Cycles)), mb(low.LiveHeap), mb(high.LiveHeap), mb(last.LiveHeap), last.Goroutines)
}

func compareFreeBlock(r *results.Report) string {
	counts := costCounts(r)
	g := grid{head: []string{"cycles/s, median acquire"}}
	for _, n := range counts {
		g.head = append(g.head, goroutines(n))
	}
	g.head = append(g.head, fmt.Sprintf("client CPU per cycle at %d", most(r)), "allocations per cycle")
	for _, name := range []string{"redlock", "redlock-fenced", "redsync", "redsync-failfast", "rueidislock-1", "rueidislock-3", "bsm"} {
		last := free(r, most(r), name)
		if last == nil {
			continue
		}
		cells := []string{nameOf(name)}
		for _, n := range counts {
			c := free(r, n, name)
			cells = append(cells, fmt.Sprintf("%s, %s", rounded(c.PerSecond), span(c.Acquire.P50)))
		}
		g.add(append(cells, span(last.ClientCPU), count(last.Allocs))...)
	}
	return g.String()
}

func compareHotBlock(r *results.Report) string {
	shapes := [][2]int{{4, 8}, {8, 16}}
	g := grid{head: []string{"turns/s; 99th percentile of the wait; fewest and most turns"}}
	for _, s := range shapes {
		g.head = append(g.head, shapeName(s))
	}
	for _, name := range hotCandidates {
		cells := []string{nameOf(name)}
		for _, s := range shapes {
			cells = append(cells, hotCell(r, s, func(h *results.Hot) string {
				return fmt.Sprintf("%s; %s; %d and %d", rounded(h.PerSecond), span(h.Wait.P99), h.Least, h.Most)
			})(name))
		}
		g.rows = append(g.rows, cells)
	}
	return g.String()
}
