package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quorumlock/redlock/bench/results"
	"gonum.org/v1/plot/plotter"
)

// plots are the pictures by the names of their files. Those for which the run has nothing
// are left out.
func plots(r *results.Report) map[string]*card {
	all := map[string]*card{
		"free-keys.svg":    freePlot(r),
		"nodes.svg":        nodesPlot(r),
		"faults.svg":       faultsPlot(r),
		"round-trip.svg":   tripsPlot(r),
		"renewal.svg":      renewalPlot(r),
		"hot-key.svg":      hotPlot(r),
		"hot-key-wait.svg": waitPlot(r),

		"elsewhere.svg":        elsewherePlot(r),
		"elsewhere-wait.svg":   elsewhereWaitPlot(r),
		"elsewhere-outage.svg": elsewhereOutagePlot(r),
	}
	for name, c := range all {
		if c == nil {
			delete(all, name)
		}
	}
	return all
}

// micros writes microseconds on an axis.
func micros(v float64) string { return strings.Replace(span(time.Duration(v*1e3)), ".0 ", " ", 1) }

// curves are those candidates at all points of a scenario, in the order given.
func curves(r *results.Report, scenario int, y func(*results.Cycle) float64, candidates ...string) (all []curve, xs []float64) {
	for _, name := range candidates {
		var points plotter.XYs
		for _, row := range r.Cycles {
			if row.Scenario == scenario && row.Candidate == name && y(row) > 0 {
				points = append(points, plotter.XY{X: row.X, Y: y(row)})
				if !slices.Contains(xs, row.X) {
					xs = append(xs, row.X)
				}
			}
		}
		if len(points) > 0 {
			all = append(all, curve{name, points})
		}
	}
	slices.Sort(xs)
	return all, xs
}

func perSecond(c *results.Cycle) float64 { return c.PerSecond }

func freePlot(r *results.Report) *card {
	all, xs := curves(r, 1, perSecond, "redlock", "redlock-fenced", "redsync", "redsync-failfast", "rueidislock-3", "bsm", "bare", "bare-resp")
	if all == nil {
		return nil
	}
	return lineChart("Lock and release of free keys", "Cycles per second; five nodes, unless one server is named. More is better.",
		axis{label: "goroutines", log: true, write: count, ticks: xs}, axis{log: true, write: count}, all)
}

func nodesPlot(r *results.Report) *card {
	all, xs := curves(r, 2, perSecond, "redlock", "redsync", "bare", "bare-resp")
	if all == nil {
		return nil
	}
	return lineChart("By number of nodes", "Cycles per second with 64 goroutines on free keys. The nodes share two cores with the client.",
		axis{label: "nodes", write: count, ticks: xs}, axis{log: true, write: count}, all)
}

// faultPoints are the faults in the order of the run, without the goroutines.
func faultPoints(r *results.Report) (points []string) {
	for _, row := range r.Cycles {
		if row.Scenario == 3 && !slices.Contains(points, row.Point) {
			points = append(points, row.Point)
		}
	}
	return points
}

func faultName(point string) string {
	name, _, _ := strings.Cut(point, ", ")
	return strings.Replace(name, "of 5 nodes ", "of 5 ", 1)
}

var faultCandidates = []string{"redlock", "redsync", "redsync-failfast"}

func faultsPlot(r *results.Report) *card {
	points := faultPoints(r)
	if len(points) == 0 {
		return nil
	}
	// What each did right before the faults, over all of them.
	healthy := group{label: "all healthy"}
	for _, name := range faultCandidates {
		v := results.Median(healthyRates(r, name))
		healthy.bars = append(healthy.bars, bar{name, []float64{v}, rounded(v)})
	}
	groups := []group{healthy}
	for _, point := range points {
		g := group{label: faultName(point)}
		for _, name := range faultCandidates {
			if row := r.Cycle(3, point, name); row != nil {
				g.bars = append(g.bars, bar{name, []float64{row.PerSecond}, rounded(row.PerSecond)})
			}
		}
		groups = append(groups, g)
	}
	return barChart("While nodes fail", "Cycles per second with 16 goroutines on free keys and five nodes. More is better.", groups)
}

func healthyRates(r *results.Report, candidate string) (all []float64) {
	for _, row := range r.Cycles {
		if row.Scenario == 3 && row.Candidate == candidate {
			all = append(all, row.Healthy...)
		}
	}
	return all
}

func tripsPlot(r *results.Report) *card {
	var groups []group
	for _, link := range r.Links {
		for _, n := range []int{1, 16, 64} {
			g := group{label: fmt.Sprintf("PING %s, %d at once", span(link.Measured), n)}
			for _, row := range r.Cycles {
				if row.Scenario == 4 && row.Goroutines == n && strings.HasPrefix(row.Point, fmt.Sprintf("link of %v ", link.Asked)) {
					trips := float64(row.Acquire.P50) / float64(link.Measured)
					g.bars = append(g.bars, bar{row.Candidate, []float64{trips}, fmt.Sprintf("%.1f (%s)", trips, span(row.Acquire.P50))})
				}
			}
			if len(g.bars) > 0 {
				groups = append(groups, g)
			}
		}
	}
	if groups == nil {
		return nil
	}
	return barChart("Over a link", "Median time of an acquire, in round trips of a PING over the same link. Less is better.", groups)
}

func renewalPlot(r *results.Report) *card {
	var groups []group
	for _, row := range r.Renewal {
		groups = append(groups, group{nameOf(row.Candidate), []bar{{
			row.Candidate, []float64{row.ClientCPU, row.ServerCPU},
			fmt.Sprintf("%.1f %% client + %.1f %% servers", 100*row.ClientCPU, 100*row.ServerCPU),
		}}})
	}
	if groups == nil {
		return nil
	}
	return barChart(count(float64(r.Renewal[0].Held))+" locks held and renewed",
		"CPU in percent of one core, for locks of 10 s: dark for the client, pale for all servers. Less is better.", groups)
}

// hotShapes are the shapes of the hot key that the plots show.
var hotShapes = [][2]int{{1, 128}, {4, 8}, {8, 16}}

func hotRow(r *results.Report, shape [2]int, down int, candidate string) *results.Hot {
	for i, row := range r.Hot {
		if row.Processes == shape[0] && row.Goroutines == shape[1] && row.Down == down && row.Candidate == candidate {
			return &r.Hot[i]
		}
	}
	return nil
}

var hotCandidates = []string{"redlock", "redsync", "redsync-5ms", "rueidislock-3", "bsm"}

func shapeName(s [2]int) string { return fmt.Sprintf("%d × %d", s[0], s[1]) }

func hotPlot(r *results.Report) *card {
	var groups []group
	for _, s := range hotShapes {
		g := group{label: shapeName(s)}
		for _, name := range hotCandidates {
			if row := hotRow(r, s, 0, name); row != nil {
				fair := 0.0
				if row.Most > 0 {
					fair = float64(row.Least) / float64(row.Most)
				}
				g.bars = append(g.bars, bar{name, []float64{fair}, count(float64(row.Least)) + " of " + count(float64(row.Most))})
			}
		}
		if len(g.bars) > 0 {
			groups = append(groups, g)
		}
	}
	if groups == nil {
		return nil
	}
	return barChart("Who gets the lock", "One key for processes × goroutines: turns of the goroutine with fewest, of those with most. Longer is fairer.", groups)
}

func waitPlot(r *results.Report) *card {
	var groups []boundsGroup
	for _, s := range hotShapes {
		g := boundsGroup{label: shapeName(s)}
		for _, name := range hotCandidates {
			if row := hotRow(r, s, 0, name); row != nil && row.Wait.Count > 0 {
				g.all = append(g.all, boundsOf(name, row.Wait, row.PerSecond))
			}
		}
		if len(g.all) > 0 {
			groups = append(groups, g)
		}
	}
	if groups == nil {
		return nil
	}
	return rangeChart("How long a waiter waits", "One key for processes × goroutines. Dot: median; thick line: to the 99th percentile; thin: to the longest. "+
		"At the right: turns/s.", axis{write: micros}, groups)
}

func boundsOf(name string, s results.Spread, rate float64) bounds {
	f := func(d time.Duration) float64 { return float64(d) / 1e3 }
	return bounds{name, f(s.P50), f(s.P99), f(s.Max), rounded(rate)}
}
