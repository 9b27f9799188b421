package main

import (
	"fmt"

	"github.com/quorumlock/redlock/bench/results"
)

// The tables of docs/performance.md. What a plot shows has no table as well.

// bareLane sends the same commands by hand, and is no lock.
const bareLane = "bare-resp"

func freeBlock(r *results.Report) string {
	g := grid{head: []string{"goroutines", "redlock", "redsync", "rueidislock", "bsm", nameOf(bareLane), "times redsync", "share of the bare lane"}}
	for _, n := range freeCounts(r) {
		cells := []string{fmt.Sprint(n)}
		for _, name := range []string{"redlock", "redsync", "rueidislock-3", "bsm", bareLane} {
			cells = append(cells, rateOf(free(r, n, name)))
		}
		this := free(r, n, "redlock")
		g.add(append(cells, times(this, free(r, n, "redsync")), share(this, free(r, n, bareLane)))...)
	}
	return g.String()
}

// costBlock is what a cycle costs where requests share batches most.
func costBlock(r *results.Report) string {
	g := grid{head: []string{fmt.Sprintf("per cycle, %d at once", most(r)), "median acquire", "client CPU", "CPU of all servers", "allocations", "bytes"}}
	for _, name := range []string{"redlock", "redlock-fenced", "redsync", "rueidislock-3", "bsm", bareLane} {
		if c := free(r, most(r), name); c != nil {
			g.add(nameOf(name), span(c.Acquire.P50), span(c.ClientCPU), span(c.ServerCPU), count(c.Allocs), count(c.Bytes))
		}
	}
	return g.String()
}

var busiest = [2]int{8, 16}

func hotBlock(r *results.Report) string {
	g := grid{head: []string{shapeName(busiest) + " goroutines", "turns/s", "wait: median", "99th percentile", "longest", "fewest and most turns", "commands per turn"}}
	for _, name := range hotCandidates {
		if h := hotRow(r, busiest, 0, name); h != nil {
			g.add(hotCells(nameOf(name), h)...)
		}
	}
	for down := 1; ; down++ {
		h := hotRow(r, busiest, down, "redlock")
		if h == nil {
			return g.String()
		}
		g.add(hotCells(fmt.Sprintf("%s, %d of 5 hung", nameOf("redlock"), down), h)...)
	}
}

func rateOf(c *results.Cycle) string {
	if c == nil {
		return "-"
	}
	return rounded(c.PerSecond)
}

func goroutines(n int) string {
	if n == 1 {
		return "1 goroutine"
	}
	return fmt.Sprintf("%d goroutines", n)
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

// turnsOf are those of the goroutine with fewest and of that with most.
func turnsOf(h *results.Hot) string { return count(float64(h.Least)) + " to " + count(float64(h.Most)) }

func hotCells(label string, h *results.Hot) []string {
	return []string{label, rounded(h.PerSecond), span(h.Wait.P50), span(h.Wait.P99), span(h.Wait.Max), turnsOf(h), count(h.Commands)}
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
