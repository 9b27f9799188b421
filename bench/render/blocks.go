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
	"run":        runBlock,
	"summary":    summaryBlock,
	"summary-zh": summaryInChinese,
	"worse":      worseBlock,
	"free":       freeBlock,
	"cost":       costBlock,
	"faults":     faultsBlock,
	"hot":        hotBlock,
	"soak":       soakBlock,
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
	fmt.Fprintf(&b, ". %d rounds of %s for each candidate (3 over links and in other places for locks).\n", m.Rounds, span(m.Window))
	b.WriteString(steadiness(r.Points))
	for i, path := range slices.Sorted(maps.Keys(m.Modules)) {
		sep := ", "
		if i == 0 {
			sep = "Libraries: "
		}
		b.WriteString(sep + strings.TrimPrefix(path, "github.com/") + " " + m.Modules[path])
	}
	b.WriteString(".\n")
	if len(r.Problems) > 0 {
		b.WriteString("\nNot all went well in this run:\n\n")
		for _, p := range r.Problems {
			b.WriteString("- " + p + "\n")
		}
	}
	return b.String()
}

// steadiness tells of rows that were measured again.
func steadiness(points []results.Point) string {
	if len(points) == 0 {
		return ""
	}
	again, still, worst := 0, 0, 0.0
	for _, p := range points {
		if p.Again > 0 {
			again++
		}
		if p.Spread > results.Steady {
			still++
		}
		worst = max(worst, p.Spread)
	}
	return fmt.Sprintf("A row whose rounds spread by more than %.1f for one of the candidates is measured again, up to %d times, and the steadiest counts: %d of %d rows were, %d still spread by more, and the widest by %.2f.\n",
		results.Steady, results.Repeats, again, len(points), still, worst)
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
	for _, point := range faultPoints(r) {
		if !strings.HasPrefix(point, "1 of 5 nodes hung") {
			continue
		}
		row("one server hung, 16 at once, cycles/s", func(name string) string {
			c := r.Cycle(3, point, name)
			if c == nil {
				return "none: it is the only one"
			}
			if f := r.Cycle(3, point, name+"-failfast"); f != nil {
				return rounded(c.PerSecond) + "; with WithFailFast " + rounded(f.PerSecond)
			}
			return rounded(c.PerSecond)
		})
	}
	shape := [2]int{8, 16}
	row("one key, 8 × 16 goroutines: turns/s", hotCell(r, shape, func(h *results.Hot) string { return rounded(h.PerSecond) }))
	row("... 99th percentile of the wait", hotCell(r, shape, func(h *results.Hot) string { return span(h.Wait.P99) }))
	row("... turns of a goroutine, fewest and most", hotCell(r, shape, func(h *results.Hot) string { return turnsOf(h) }))
	return g.String()
}

// inChinese are the words of the summary; a figure is the same in both languages.
var inChinese = strings.NewReplacer(
	"redlock (this)", "redlock（这个库）",
	"servers", "服务器",
	"5 independent", "5 台互相独立",
	"1, majority of 5 keys", "1 台，5 个键的多数",
	"lock and release, ", "加锁并释放，",
	"one server hung, ", "一台服务器卡住，",
	" at once, cycles/s", " 个同时，次/秒",
	" at once", " 个同时",
	"none: it is the only one", "没有：只有这一台",
	"; with WithFailFast ", "；WithFailFast 时 ",
	"one key, 8 × 16 goroutines: turns/s", "同一个键，8 × 16 个 goroutine：轮/秒",
	"... 99th percentile of the wait", "…… 等待时间的第 99 百分位",
	"... turns of a goroutine, fewest and most", "…… 每个 goroutine 轮到的次数，最少和最多",
	" to ", " 到 ",
)

func summaryInChinese(r *results.Report) string { return inChinese.Replace(summaryBlock(r)) }

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
	const some = 16
	if bare, this := free(r, some, "bare-resp"), free(r, some, "redlock"); bare != nil && this != nil && bare.PerSecond > this.PerSecond {
		say("With %d goroutines the bare lane without go-redis, which has no queue and no guards, makes %s cycles/s where this makes %s: the difference is what those cost.",
			some, rounded(bare.PerSecond), rounded(this.PerSecond))
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
			faster = append(faster, fmt.Sprintf("%s %s, and %s for a goroutine", nameOf(name), rounded(other.PerSecond), turnsOf(other)))
		}
	}
	if faster != nil {
		say("Order costs turns. On one key for 8 × 16 goroutines this makes %s turns/s, and %s for a goroutine; %s.",
			rounded(mine.PerSecond), turnsOf(mine), strings.Join(faster, "; "))
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
