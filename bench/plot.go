package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// draw writes a plot for each scenario that ran, as SVG files.
func (r *report) draw(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, d := range []func(dir string) error{
		r.drawFree, r.drawNodes, r.drawFaults, r.drawTrips, r.drawRenewal, r.drawHot, r.drawSoak,
	} {
		if err := d(dir); err != nil {
			return err
		}
	}
	return nil
}

const (
	plotWidth  = 20 * vg.Centimeter
	plotHeight = 12 * vg.Centimeter
)

// line is one candidate's curve.
type line struct {
	name   string
	points plotter.XYs
}

// lines collects a curve per candidate, in order of appearance.
func (r *report) lines(scenario int, y func(*cycleRow) float64) (all []line) {
	for _, row := range r.Cycles {
		if row.Scenario != scenario || y(row) <= 0 {
			continue
		}
		i := slices.IndexFunc(all, func(l line) bool { return l.name == row.Candidate })
		if i < 0 {
			i, all = len(all), append(all, line{name: row.Candidate})
		}
		all[i].points = append(all[i].points, plotter.XY{X: row.X, Y: y(row)})
	}
	return all
}

func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.Padding = vg.Points(6)
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	return p
}

// drawLines draws curves; names of axes say which are logarithmic.
func drawLines(file, title, x, y string, logX, logY bool, all []line) error {
	if len(all) == 0 {
		return nil
	}
	p := newPlot(title, x, y)
	var ticks []plot.Tick
	var values []float64
	for i, l := range all {
		curve, marks, err := plotter.NewLinePoints(l.points)
		if err != nil {
			return err
		}
		curve.Color, marks.Color = plotutil.Color(i), plotutil.Color(i)
		curve.Dashes, marks.Shape = plotutil.Dashes(i/7), plotutil.Shape(i)
		p.Add(curve, marks)
		p.Legend.Add(l.name, curve, marks)
		for _, xy := range l.points {
			values = append(values, xy.Y)
			if !slices.ContainsFunc(ticks, func(t plot.Tick) bool { return t.Value == xy.X }) {
				ticks = append(ticks, plot.Tick{Value: xy.X, Label: strconv.FormatFloat(xy.X, 'f', -1, 64)})
			}
		}
	}
	p.X.Tick.Marker = plot.ConstantTicks(ticks)
	if logX && len(ticks) > 1 {
		p.X.Scale = plot.LogScale{}
	}
	if logY {
		logarithmic(p, values)
	} else {
		p.Y.Min = 0
	}
	return p.Save(plotWidth, plotHeight, file)
}

// logarithmic makes the vertical axis logarithmic, with ticks at 1, 2 and 5 times the
// powers of ten, and with room for the legend.
func logarithmic(p *plot.Plot, values []float64) {
	low, high := slices.Min(values), slices.Max(values)
	p.Y.Min, p.Y.Max = low/1.5, high*6
	p.Y.Scale = plot.LogScale{}
	var ticks []plot.Tick
	for e := math.Floor(math.Log10(p.Y.Min)); e <= math.Ceil(math.Log10(p.Y.Max)); e++ {
		for _, m := range []float64{1, 2, 5} {
			if v := m * math.Pow(10, e); v >= p.Y.Min && v <= p.Y.Max {
				ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'g', 4, 64)})
			}
		}
	}
	p.Y.Tick.Marker = plot.ConstantTicks(ticks)
}

// bars draws groups of bars: for each label one bar of each name.
type bars struct {
	names  []string
	labels []string
	values map[[2]string]float64 // by name and label
}

func (b *bars) add(name, label string, v float64) {
	if !slices.Contains(b.names, name) {
		b.names = append(b.names, name)
	}
	if !slices.Contains(b.labels, label) {
		b.labels = append(b.labels, label)
	}
	if b.values == nil {
		b.values = make(map[[2]string]float64)
	}
	b.values[[2]string{name, label}] = v
}

func (b *bars) draw(file, title, y string) error {
	if len(b.values) == 0 {
		return nil
	}
	p := newPlot(title, "", y)
	width := vg.Points(min(40, 320/float64(len(b.names)*len(b.labels))))
	high := 0.0
	for i, name := range b.names {
		values := make(plotter.Values, len(b.labels))
		for k, label := range b.labels {
			values[k] = b.values[[2]string{name, label}]
			high = max(high, values[k])
		}
		chart, err := plotter.NewBarChart(values, width)
		if err != nil {
			return err
		}
		chart.LineStyle.Width = 0
		chart.Color = plotutil.Color(i)
		chart.Offset = width * vg.Length(float64(i)-float64(len(b.names)-1)/2)
		p.Add(chart)
		p.Legend.Add(name, chart)
	}
	p.NominalX(b.labels...)
	p.X.Min, p.X.Max = -0.6, float64(len(b.labels))-0.4
	p.Y.Min, p.Y.Max = 0, high*(1.1+0.09*float64(len(b.names))) // room for the legend
	return p.Save(plotWidth, plotHeight, file)
}

func (r *report) drawFree(dir string) error {
	err := drawLines(filepath.Join(dir, "free-keys.svg"), "Free keys: lock and release", "goroutines", "cycles per second",
		true, true, r.lines(1, func(row *cycleRow) float64 { return row.PerSecond }))
	if err != nil {
		return err
	}
	return drawLines(filepath.Join(dir, "free-keys-cpu.svg"), "Free keys: client CPU", "goroutines", "microseconds per cycle",
		true, true, r.lines(1, func(row *cycleRow) float64 { return float64(row.ClientCPU) / 1e3 }))
}

func (r *report) drawNodes(dir string) error {
	title := "Number of nodes, " + goroutines(nodesGoroutines)
	return drawLines(filepath.Join(dir, "nodes.svg"), title, "nodes", "cycles per second",
		false, true, r.lines(2, func(row *cycleRow) float64 { return row.PerSecond }))
}

func (r *report) drawFaults(dir string) error {
	var b bars
	for _, row := range r.Cycles {
		if row.Scenario == 3 {
			b.add(row.Candidate, fmt.Sprintf("%.0f %s", row.X, between(row.Point, "nodes ", ",")), row.PerSecond)
		}
	}
	return b.draw(filepath.Join(dir, "faults.svg"), "Some of five nodes faulty, "+goroutines(faultGoroutines), "cycles per second")
}

// between returns what stands between two marks in the name of a point.
func between(s, begin, end string) string {
	_, s, _ = strings.Cut(s, begin)
	s, _, _ = strings.Cut(s, end)
	return s
}

func (r *report) drawTrips(dir string) error {
	var b bars
	for _, row := range r.Cycles {
		if row.Scenario == 4 {
			b.add(row.Candidate, fmt.Sprintf("%s x%d", between(row.Point, "link of ", " ("), row.Goroutines), float64(row.Acquire.P50)/1e6)
		}
	}
	return b.draw(filepath.Join(dir, "round-trip.svg"), "Median acquire by round trip and goroutines", "milliseconds")
}

func (r *report) drawRenewal(dir string) error {
	var b bars
	for _, row := range r.Renewal {
		b.add("client", row.Candidate, 100*row.ClientCPU)
		b.add("servers", row.Candidate, 100*row.ServerCPU)
	}
	if len(r.Renewal) == 0 {
		return nil
	}
	title := fmt.Sprintf("%d held locks of %v, renewed", r.Renewal[0].Held, lease)
	return b.draw(filepath.Join(dir, "renewal.svg"), title, "percent of one core")
}

func (r *report) drawHot(dir string) error {
	var rates, waits bars
	for _, row := range r.Hot {
		label := fmt.Sprintf("%d x %d", row.Processes, row.Goroutines)
		rates.add(row.Candidate, label, row.PerSecond)
		waits.add(row.Candidate, label, float64(row.Wait.P99)/1e6)
	}
	if err := rates.draw(filepath.Join(dir, "hot-key.svg"), "One hot key, processes x goroutines", "handovers per second"); err != nil {
		return err
	}
	return waits.draw(filepath.Join(dir, "hot-key-wait.svg"), "One hot key, processes x goroutines", "p99 of the wait, milliseconds")
}

func (r *report) drawSoak(dir string) error {
	l := line{name: "live heap"}
	for _, row := range r.Soak {
		l.points = append(l.points, plotter.XY{X: float64(row.Cycles) / 1e6, Y: float64(row.LiveHeap) / 1e6})
	}
	if len(l.points) == 0 {
		return nil
	}
	return drawLines(filepath.Join(dir, "soak.svg"), "Memory over time, "+goroutines(soakGoroutines), "million cycles", "MB", false, false, []line{l})
}
