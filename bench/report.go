package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/quorumlock/redlock/bench/results"
)

// report is what this run measured, and can be printed.
type report struct{ results.Report }

func (r *report) print(w io.Writer) {
	m := r.Meta
	fmt.Fprintf(w, "%s, %s, %d CPUs shared with the servers, %s; %d rounds of %v for each candidate; took %v\n",
		m.Go, m.OS, m.CPUs, m.ServerName(), m.Rounds, m.Window, m.Took.Round(time.Second))
	for _, path := range slices.Sorted(maps.Keys(m.Modules)) {
		fmt.Fprintf(w, "  %s %s\n", path, m.Modules[path])
	}
	for s := 1; s <= 4; s++ {
		r.printCycles(w, s)
		if s == 1 {
			r.printBenchmark(w)
		}
	}
	r.printRenewal(w)
	r.printHot(w)
	r.printHandovers(w)
	r.printSoak(w)
	r.printCycles(w, 8)
	printHotRows(w, "Scenario 8: one key for all; waits are p50 / p99 / max; the rest is per handover", r.Others)
	r.printEnded(w)
	r.printOutages(w)
}

func (r *report) printEnded(w io.Writer) {
	if len(r.Ended) == 0 {
		return
	}
	t := newTable(w, "Scenario 8: until another process has the lock of a holder that was killed, or stopped (SIGSTOP)", 2, "", "holder", "after")
	for _, row := range r.Ended {
		after := row.After.Round(time.Millisecond).String()
		switch {
		case row.Error != "":
			after = row.Error
		case row.GaveUp > 0:
			after = fmt.Sprintf("gave up after %v", row.GaveUp.Round(time.Millisecond))
		case row.After == 0:
			after = fmt.Sprintf("not in %v", row.Limit)
		}
		t.AppendRow(table.Row{row.Candidate, row.How, after})
	}
	t.Render()
}

func (r *report) printOutages(w io.Writer) {
	if len(r.Outages) == 0 {
		return
	}
	t := newTable(w, fmt.Sprintf("Scenario 8: a server is killed under %d goroutines on free keys, the leader if there is one, and comes back", faultGoroutines), 1,
		"", "servers", "away", "cycles/s before", "during", "after", "longest pause", "errors", "the first")
	for _, row := range r.Outages {
		t.AppendRow(table.Row{row.Candidate, row.Servers, row.Down, rate(row.Before), rate(row.During), rate(row.After),
			row.Pause.Round(time.Millisecond), row.Errors, strings.SplitN(row.FirstError, "\n", 2)[0]})
	}
	t.Render()
}

// newTable returns a table whose first columns are left-aligned.
func newTable(w io.Writer, title string, left int, header ...any) table.Writer {
	fmt.Fprintf(w, "\n%s\n", title)
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.Style().Options.DrawBorder = false
	t.Style().Options.SeparateColumns = false
	t.Style().Format.Header = text.FormatDefault
	t.AppendHeader(header)
	var columns []table.ColumnConfig
	for i := left; i < len(header); i++ {
		columns = append(columns, table.ColumnConfig{Number: i + 1, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(columns)
	return t
}

func (r *report) printCycles(w io.Writer, scenario int) {
	var rows []*results.Cycle
	for _, row := range r.Cycles {
		if row.Scenario == scenario {
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 {
		return
	}
	last := table.Row{"x bare lane (min-max)", "x bare, no go-redis (min-max)"}
	if scenario == 3 {
		last = table.Row{"x healthy (min-max)"}
	}
	title := fmt.Sprintf("Scenario %d: %s. Cycles of lock and release; acquire and release are p50 / p99 / max; the rest is per cycle",
		scenario, scenarios[scenario-1].title)
	t := newTable(w, title, 1, append(append(table.Row{"", "cycles/s", "acquire", "release", "client CPU", "server CPU", "allocs", "bytes",
		"x redsync (min-max)"}, last...), "errors", "cut")...)
	var notes []string
	for i, row := range rows {
		if i == 0 || rows[i-1].Point != row.Point {
			if i > 0 {
				t.AppendSeparator()
			}
			t.AppendRow(table.Row{row.Point})
		}
		beside := table.Row{r.beside(row, bareName), r.beside(row, bareRESPName)}
		if scenario == 3 {
			beside = table.Row{results.RatioOf(row.Rounds, row.Healthy).String()}
		}
		server := micros(row.ServerCPU)
		if scenario == 3 {
			server = "" // some are not there
		}
		client, allocs, size := micros(row.ClientCPU), number(row.Allocs), number(row.Bytes)
		if row.Cycles == 0 {
			client, server, allocs, size = "-", "-", "-", "-"
		}
		t.AppendRow(append(append(table.Row{
			"  " + row.Candidate, rate(row.PerSecond), row.Acquire, row.Release, client, server,
			allocs, size, r.beside(row, baseline),
		}, beside...), row.Errors, row.Cut))
		if row.FirstError != "" {
			notes = append(notes, fmt.Sprintf("  %s, %s: %s", row.Point, row.Candidate, row.FirstError))
		}
	}
	t.Render()
	fmt.Fprintln(w, "  cut: calls that had not returned after some seconds and were ended from outside; such a candidate had no more rounds")
	if scenario == 3 {
		fmt.Fprintln(w, "  x healthy: to its own turn right before the fault, of the same round")
	}
	if len(notes) > 0 {
		fmt.Fprintf(w, "  first errors:\n  %s\n", strings.Join(notes, "\n  "))
	}
}

// beside compares a row with another candidate's, round by round.
func (r *report) beside(row *results.Cycle, other string) string {
	o := r.Cycle(row.Scenario, row.Point, other)
	if o == nil {
		return ""
	}
	return results.RatioOf(row.Rounds, o.Rounds).String()
}

func (r *report) printBenchmark(w io.Writer) {
	if len(r.Benchmark) == 0 {
		return
	}
	t := newTable(w, "redis-benchmark: what ONE server does; a cycle is a SET and an EVAL", 1, "command", "connections", "pipeline", "commands/s")
	for _, row := range r.Benchmark {
		t.AppendRow(table.Row{row.Command, row.Connections, row.Pipeline, rate(row.PerSecond)})
	}
	t.Render()
}

func (r *report) printRenewal(w io.Writer) {
	if len(r.Renewal) == 0 {
		return
	}
	title := fmt.Sprintf("Scenario 5: held locks of %v that are renewed (redsync by a goroutine for each, at a third of it)", lease)
	t := newTable(w, title, 1, "", "locks", "client CPU", "server CPU", "commands/s", "reads/s", "MB/s", "bytes/lock",
		"renewals", "late", "least left", "lost", "errors")
	for _, row := range r.Renewal {
		renewals, late, latest := any(row.Renewals), any(row.Late), any(row.Latest.Round(time.Millisecond))
		if !row.ToldByTheLibrary {
			renewals, late, latest = "not told", "", ""
		}
		t.AppendRow(table.Row{
			row.Candidate, row.Held, percent(row.ClientCPU), percent(row.ServerCPU), rate(row.PerSecond.Commands),
			rate(row.PerSecond.Batches), fmt.Sprintf("%.2f", row.PerSecond.Bytes/1e6), number(row.HeapPerLock), renewals, late, latest, row.Lost, row.Errors,
		})
	}
	t.Render()
	fmt.Fprintln(w, "  CPU in percent of one core; reads: of the servers from their sockets, about one per batch; late: less than half of the TTL was left")
}

func (r *report) printHot(w io.Writer) {
	printHotRows(w, "Scenario 6: one hot key; waits are p50 / p99 / max; the rest is per handover", r.Hot)
}

func printHotRows(w io.Writer, title string, rows []results.Hot) {
	if len(rows) == 0 {
		return
	}
	t := newTable(w, title, 1, "", "handovers/s", "wait",
		"least-most served", "unserved", "commands", "client CPU", "server CPU", "errors", "exclusion")
	var notes []string
	for i, row := range rows {
		if i == 0 || rows[i-1].Processes != row.Processes || rows[i-1].Goroutines != row.Goroutines || rows[i-1].Down != row.Down {
			if i > 0 {
				t.AppendSeparator()
			}
			point := fmt.Sprintf("%d x %d goroutines", row.Processes, row.Goroutines)
			if row.Down > 0 {
				point += fmt.Sprintf(", %d nodes hung", row.Down)
			}
			t.AppendRow(table.Row{point})
		}
		exclusion := "kept"
		if row.Violations > 0 || row.Lost > 0 {
			exclusion = "BROKEN"
		}
		t.AppendRow(table.Row{
			"  " + row.Candidate, rate(row.PerSecond), row.Wait, fmt.Sprintf("%d-%d", row.Least, row.Most), row.Unserved,
			number(row.Commands), micros(row.ClientCPU), micros(row.ServerCPU), row.Errors, exclusion,
		})
		if row.FirstError != "" {
			notes = append(notes, fmt.Sprintf("  %d x %d, %s: %s", row.Processes, row.Goroutines, row.Candidate, row.FirstError))
		}
	}
	t.Render()
	fmt.Fprintln(w, "  unserved: still waiting when the time was over; commands: those inside scripts count too")
	if len(notes) > 0 {
		fmt.Fprintf(w, "  first errors:\n  %s\n", strings.Join(notes, "\n  "))
	}
}

func (r *report) printHandovers(w io.Writer) {
	if len(r.Handovers) == 0 {
		return
	}
	t := newTable(w, "Scenario 6: from the call of release in one process to the grant in another, the only one that waits", 1,
		"", "PING", "handovers", "p50 / p99 / max", "p50 / PING", "errors")
	for _, row := range r.Handovers {
		t.AppendRow(table.Row{
			row.Candidate, row.RoundTrip.Round(time.Microsecond), row.Latency.Count, row.Latency,
			fmt.Sprintf("%.1f", float64(row.Latency.P50)/float64(max(row.RoundTrip, 1))), row.Errors,
		})
	}
	t.Render()
	for _, row := range r.Handovers {
		if row.FirstError != "" {
			fmt.Fprintf(w, "  first error of %s: %s\n", row.Candidate, row.FirstError)
		}
	}
}

func (r *report) printSoak(w io.Writer) {
	if len(r.Soak) == 0 {
		return
	}
	t := newTable(w, fmt.Sprintf("Scenario 7: redlock over time, %s", goroutines(soakGoroutines)), 0,
		"cycles", "cycles/s", "live heap", "goroutines", "allocs", "client CPU", "errors")
	for _, row := range r.Soak {
		t.AppendRow(table.Row{row.Cycles, rate(row.PerSecond), fmt.Sprintf("%.2f MB", float64(row.LiveHeap)/1e6), row.Goroutines,
			number(row.Allocs), micros(row.ClientCPU), row.Errors})
	}
	t.Render()
}
