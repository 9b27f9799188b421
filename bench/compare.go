package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/quorumlock/redlock/bench/results"
	"github.com/quorumlock/redlock/internal/testing/realredis"
)

// series are the turns of one candidate at one point of a scenario.
type series struct {
	candidate string
	turns     []turn // by round; nil acquire: not taken
}

// inTurns lets the candidates take turns, round by round, each round in another order,
// so that what disturbs the machine disturbs all of them alike.
func inTurns(l lineup, rounds int, take func(round int, c candidate) (turn, error)) ([]series, error) {
	all := make([]series, len(l))
	for i, c := range l {
		all[i] = series{c.name(), make([]turn, rounds)}
	}
	for r := range rounds {
		for k := range l {
			i := (k + r) % len(l)
			t, err := take(r, l[i])
			if err != nil {
				return nil, err
			}
			all[i].turns[r] = t
		}
	}
	return all, nil
}

// warmUp gives connections, scripts and code a first run that does not count.
func (b *bench) warmUp(ctx context.Context, l lineup, goroutines int) error {
	for _, c := range l {
		if _, err := take(ctx, c, nil, load{goroutines: goroutines, window: b.window / 3}); err != nil {
			return err
		}
	}
	return nil
}

// compare measures one point of a scenario and adds its rows to the report.
func (b *bench) compare(ctx context.Context, scenario int, point string, x float64, l lineup, servers []*realredis.Server, goroutines, rounds int) error {
	b.progress("  %s", point)
	if err := b.warmUp(ctx, l, goroutines); err != nil {
		return err
	}
	stuck := make(map[string]bool)
	measure := func() ([]series, error) {
		return inTurns(l, rounds, func(_ int, c candidate) (turn, error) {
			if stuck[c.name()] {
				return turn{}, nil // it would be again, which costs seconds
			}
			t, err := take(ctx, c, servers, load{goroutines: goroutines, window: b.window})
			stuck[c.name()] = t.cut > 0
			return t, err
		})
	}
	all, err := measure()
	if err != nil {
		return err
	}
	again := 0
	for !b.quick && again < results.Repeats && spread(all) > results.Steady {
		again++
		other, err := measure()
		if err != nil {
			return err
		}
		if spread(other) < spread(all) {
			all = other
		}
	}
	b.report.Points = append(b.report.Points, results.Point{Scenario: scenario, Name: point, Again: again, Spread: spread(all)})
	b.addCycles(scenario, point, x, goroutines, all, true)
	return nil
}

// rates are the cycles per second of the turns that were taken, in order.
func (s *series) rates() (rates []float64) {
	for _, t := range s.turns {
		if t.acquire != nil {
			rates = append(rates, t.perSecond)
		}
	}
	return rates
}

// spread is how far the rounds of the least steady candidate are apart: the most cycles of a round as
// a multiple of the fewest. Of one that was stuck nothing is asked.
func spread(all []series) float64 {
	most := 1.0
	for i := range all {
		if rates := all[i].rates(); len(rates) > 0 && len(rates) == len(all[i].turns) && slices.Min(rates) > 0 {
			most = max(most, slices.Max(rates)/slices.Min(rates))
		}
	}
	return most
}

// addCycles adds the rows of one point. What is wrong with one that must not fail is told.
func (b *bench) addCycles(scenario int, point string, x float64, goroutines int, all []series, mustWork bool) []*results.Cycle {
	var rows []*results.Cycle
	for i := range all {
		s := &all[i]
		row := &results.Cycle{
			Scenario: scenario, Point: point, X: x, Candidate: s.candidate, Goroutines: goroutines,
			Rounds: s.rates(), PerSecond: results.Median(s.rates()),
		}
		acquire, release := newHistogram(), newHistogram()
		var used usage
		for _, t := range s.turns {
			if t.acquire == nil {
				continue
			}
			row.Cycles += t.cycles
			row.Errors += t.errors
			row.Cut += t.cut
			if row.FirstError == "" {
				row.FirstError = t.firstError
			}
			acquire.Merge(t.acquire)
			release.Merge(t.release)
			used.client += t.used.client
			used.server += t.used.server
			used.allocs += t.used.allocs
			used.bytes += t.used.bytes
		}
		row.Acquire, row.Release = spreadOf(acquire), spreadOf(release)
		if n := row.Cycles; n > 0 {
			row.ClientCPU, row.ServerCPU = used.client/time.Duration(n), used.server/time.Duration(n)
			row.Allocs, row.Bytes = float64(used.allocs)/float64(n), float64(used.bytes)/float64(n)
		}
		if mustWork || s.candidate == "redlock" {
			b.checkWorked(row)
		}
		b.report.Cycles = append(b.report.Cycles, row)
		rows = append(rows, row)
	}
	return rows
}

func (b *bench) checkWorked(row *results.Cycle) {
	where := fmt.Sprintf("scenario %d, %s: %s", row.Scenario, row.Point, row.Candidate)
	if row.Cycles == 0 {
		b.mustWork(row.Candidate, "%s made no cycles", where)
	}
	if row.Errors > 0 {
		b.mustWork(row.Candidate, "%s had %d errors, the first: %s", where, row.Errors, row.FirstError)
	}
	if row.Cut > 0 {
		b.shortcoming(row.Candidate, "%s had %d calls that did not return", where, row.Cut)
	}
}
