package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quorumlock/redlock/bench/results"
)

// The blocks and plots of docs/choosing.md: locks in other places.

var elsewhere = []string{"redlock", "redsync", "bsm", "postgres-lock", "postgres-row", "postgres-version", "etcd", "zookeeper", "sqlite"}

func init() {
	blocks["elsewhere-run"] = elsewhereRunBlock
	blocks["elsewhere-free"] = elsewhereFreeBlock
	blocks["elsewhere-hot"] = elsewhereHotBlock
	blocks["elsewhere-outage"] = elsewhereOutageBlock
}

// elsewhereFree finds a row of scenario 8.
func elsewhereFree(r *results.Report, n int, candidate string) *results.Cycle {
	return r.Cycle(8, goroutines(n), candidate)
}

func elsewhereHot(r *results.Report, candidate string) *results.Hot {
	i := slices.IndexFunc(r.Others, func(h results.Hot) bool { return h.Candidate == candidate })
	if i < 0 {
		return nil
	}
	return &r.Others[i]
}

func elsewhereRunBlock(r *results.Report) string {
	if r.Meta.Fsync == 0 {
		return ""
	}
	return fmt.Sprintf("A small write with fsync took %s on this machine. Rows of PostgreSQL and SQLite, etcd and ZooKeeper wait for one with "+
		"each lock, or for several, so they depend on the disk. Advisory locks of PostgreSQL and Redis wait for none.\n", span(r.Meta.Fsync))
}

var elsewhereCounts = []int{1, 16, 128}

func elsewhereFreeBlock(r *results.Report) string {
	g := grid{head: []string{"cycles/s (median acquire)"}}
	for _, n := range elsewhereCounts {
		g.head = append(g.head, goroutines(n))
	}
	g.head = append(g.head, "allocations of the client per cycle")
	for _, name := range elsewhere {
		cells := []string{nameOf(name)}
		allocs := "-"
		for _, n := range elsewhereCounts {
			c := elsewhereFree(r, n, name)
			if c == nil {
				cells = append(cells, "-")
				continue
			}
			cells = append(cells, fmt.Sprintf("%s (%s)", rounded(c.PerSecond), span(c.Acquire.P50)))
			allocs = count(c.Allocs)
		}
		if allocs != "-" {
			g.rows = append(g.rows, append(cells, allocs))
		}
	}
	return g.String()
}

func elsewhereHotBlock(r *results.Report) string {
	g := grid{head: []string{"one key, 4 × 8", "turns/s", "wait: median", "99th percentile", "longest", "fewest and most turns"}}
	for _, name := range elsewhere {
		if h := elsewhereHot(r, name); h != nil {
			cells := hotCells(nameOf(name), h)
			g.rows = append(g.rows, cells[:len(cells)-1])
		}
	}
	return g.String()
}

func elsewhereOutageBlock(r *results.Report) string {
	g := grid{head: []string{"one server is killed", "servers", "cycles/s before", "while it is away", "after", "longest time without a lock"}}
	for _, o := range r.Outages {
		g.add(nameOf(o.Candidate), fmt.Sprint(o.Servers), rounded(o.Before), rounded(o.During), rounded(o.After), span(o.Pause))
	}
	return g.String()
}

func elsewherePlot(r *results.Report) *card {
	all, xs := curves(r, 8, perSecond, elsewhere...)
	if all == nil {
		return nil
	}
	return lineChart("Lock and release in other places", "Cycles per second on free keys, all servers and the client on two cores. More is better.",
		axis{label: "goroutines", log: true, write: count, ticks: xs}, axis{log: true, write: count}, all)
}

func elsewhereWaitPlot(r *results.Report) *card {
	g := boundsGroup{} // alone: its rows have the names
	for _, name := range elsewhere {
		if h := elsewhereHot(r, name); h != nil && h.Wait.Count > 0 {
			g.all = append(g.all, boundsOf(name, h.Wait, h.PerSecond))
		}
	}
	if g.all == nil {
		return nil
	}
	return rangeChart("Waiting in other places", "One key for four processes with eight goroutines each. Dot: median; thick line: to the 99th percentile; "+
		"thin: to the longest. At the right: turns/s.", axis{write: micros}, []boundsGroup{g})
}

func elsewhereOutagePlot(r *results.Report) *card {
	var groups []group
	for _, o := range r.Outages {
		groups = append(groups, group{nameOf(o.Candidate), []bar{{o.Candidate, []float64{o.Pause.Seconds()},
			fmt.Sprintf("%s, one of %d", span(o.Pause), o.Servers)}}})
	}
	if groups == nil {
		return nil
	}
	return barChart("When a server is lost", fmt.Sprintf("Longest time in which no client got a lock, while one server is away for %s: the leader, if there is one. Less is better.",
		strings.Replace(span(r.Outages[0].Down.Round(time.Second)), ".0 ", " ", 1)), groups)
}
