package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/quorumlock/redlock/bench/results"
)

// The tables of docs/performance.md.

// bares are the bare lanes of a run: those of before 2026-11-24 have the one over go-redis only.
func bares(r *results.Report) []string {
	names := []string{"bare", "bare-resp"}
	return slices.DeleteFunc(names, func(name string) bool {
		return name != "bare" && !slices.ContainsFunc(r.Cycles, func(c *results.Cycle) bool { return c.Candidate == name })
	})
}

// headed adds a column for each of the bare lanes to others, and at the end one for each of these
// shares of them.
func headed(r *results.Report, head []string, last ...string) []string {
	head = slices.Clone(head)
	for _, name := range bares(r) {
		head = append(head, nameOf(name))
	}
	head = append(head, last...)
	for _, name := range bares(r) {
		head = append(head, "share of the "+nameOf(name))
	}
	return head
}

func freeBlock(r *results.Report) string {
	g := grid{head: headed(r, []string{"goroutines", "redlock", "redsync", "rueidislock"}, "times redsync", "times rueidislock")}
	for _, n := range freeCounts(r) {
		cells := []string{fmt.Sprint(n)}
		for _, name := range append([]string{"redlock", "redsync", "rueidislock-3"}, bares(r)...) {
			cells = append(cells, rateOf(free(r, n, name)))
		}
		this := free(r, n, "redlock")
		cells = append(cells, times(this, free(r, n, "redsync")), times(this, free(r, n, "rueidislock-3")))
		for _, name := range bares(r) {
			cells = append(cells, share(this, free(r, n, name)))
		}
		g.add(cells...)
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
	g := grid{head: []string{"median acquire (99th percentile)", "redlock", "redsync", "rueidislock", "bsm, one server"}}
	for _, name := range bares(r) {
		g.head = append(g.head, nameOf(name))
	}
	for _, n := range freeCounts(r) {
		cells := []string{goroutines(n)}
		for _, name := range append([]string{"redlock", "redsync", "rueidislock-3", "bsm"}, bares(r)...) {
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
		for _, name := range append([]string{"redlock", "redlock-fenced", "redsync", "rueidislock-3", "bsm"}, bares(r)...) {
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
	g := grid{head: headed(r, []string{"nodes", "redlock", "redsync"}, "times redsync")}
	for _, row := range r.Cycles {
		if row.Scenario == 2 && row.Candidate == "redlock" {
			sync := r.Cycle(2, row.Point, "redsync")
			cells := []string{count(row.X), rounded(row.PerSecond), rateOf(sync)}
			for _, name := range bares(r) {
				cells = append(cells, rateOf(r.Cycle(2, row.Point, name)))
			}
			cells = append(cells, times(row, sync))
			for _, name := range bares(r) {
				cells = append(cells, share(row, r.Cycle(2, row.Point, name)))
			}
			g.add(cells...)
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
	g := grid{head: []string{"link (PING), goroutines", "redlock", "in round trips", "redsync", "in round trips"}}
	for _, name := range bares(r) {
		g.head = append(g.head, nameOf(name), "in round trips")
	}
	for _, link := range r.Links {
		for _, row := range r.Cycles {
			if row.Scenario != 4 || row.Candidate != "redlock" || !strings.HasPrefix(row.Point, fmt.Sprintf("link of %v ", link.Asked)) {
				continue
			}
			cells := []string{fmt.Sprintf("%s, %d", span(link.Measured), row.Goroutines)}
			for _, name := range append([]string{"redlock", "redsync"}, bares(r)...) {
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
	for _, s := range hotShapes {
		for _, name := range hotCandidates {
			if h := hotRow(r, s, 0, name); h != nil {
				g.add(hotCells(shapeName(s)+", "+nameOf(name), h)...)
			}
		}
	}
	return g.String()
}

// turnsOf are those of the goroutine with fewest and of that with most.
func turnsOf(h *results.Hot) string { return count(float64(h.Least)) + " to " + count(float64(h.Most)) }

func hotCells(label string, h *results.Hot) []string {
	return []string{label, rounded(h.PerSecond), span(h.Wait.P50), span(h.Wait.P99), span(h.Wait.Max), turnsOf(h), count(h.Commands)}
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
