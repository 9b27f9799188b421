package main

import (
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// curve is one candidate's line.
type curve struct {
	candidate string
	points    plotter.XYs
}

// axis is how values are written and where lines are drawn. With log, distances are
// ratios.
type axis struct {
	label string
	log   bool
	write func(float64) string
	ticks []float64 // empty: chosen
}

// lineChart draws curves with their names at their ends.
func lineChart(title, about string, x, y axis, curves []curve) *card {
	c := newCard(title, about, 360+headOf(about, nil))
	p := plot.New()
	quiet(p)
	p.X.Label.Text, p.Y.Label.Text = x.label, y.label
	low, high := math.Inf(1), 0.0
	ends := &endLabels{}
	for _, l := range curves {
		for _, xy := range l.points {
			low, high = min(low, xy.Y), max(high, xy.Y)
		}
	}
	if !y.log {
		low = 0
	}
	yTicks := ticksOf(y, low, high)
	p.Y.Tick.Marker = yTicks
	if x.log {
		p.X.Scale = plot.LogScale{}
	}
	if y.log {
		p.Y.Scale = plot.LogScale{}
	}
	p.X.Tick.Marker = ticksOf(x, 0, 0)
	grid := plotter.NewGrid()
	grid.Vertical.Width = 0
	grid.Horizontal.Color, grid.Horizontal.Width = faint, 1
	grid.Vertical.Color = nil
	p.Add(grid)
	// The first is the one that matters, and lies above the others.
	for i := range curves {
		l := curves[len(curves)-1-i]
		look := lookOf(l.candidate)
		line, dots, err := plotter.NewLinePoints(l.points)
		if err != nil {
			panic(err) // no points
		}
		line.Color, dots.Color = look.color, look.color
		line.Width, dots.Shape, dots.Radius = 2, draw.CircleGlyph{}, 3
		if l.candidate == "redlock" {
			line.Width, dots.Radius = 3.2, 4
		}
		if look.dashed {
			line.Dashes = []vg.Length{5, 4}
		}
		p.Add(line, dots)
		ends.add(l, look)
	}
	p.Add(ends)
	// The outermost ticks are the ends of the axis, so that no curve leaves it.
	p.Y.Min, p.Y.Max = min(low, yTicks[0].Value), max(high, yTicks[len(yTicks)-1].Value)
	if y.log {
		p.Y.Min, p.Y.Max = low/1.15, high*1.1
	}
	right := vg.Length(0)
	for _, e := range ends.all {
		right = max(right, widthOf(ends.style(e.look), e.look.name))
	}
	p.Draw(draw.Crop(c.body, 0, -right-16, 0, 0))
	return c
}

// endLabels writes names at the right ends of curves, apart from each other.
type endLabels struct{ all []endLabel }

type endLabel struct {
	look look
	at   plotter.XY
	bold bool
}

func (e *endLabels) add(l curve, k look) {
	e.all = append(e.all, endLabel{k, l.points[len(l.points)-1], l.candidate == "redlock"})
}

func (e *endLabels) style(k look) text.Style {
	return style(small, k.color, k.name == nameOf("redlock"), text.XLeft, text.YCenter)
}

func (e *endLabels) Plot(c draw.Canvas, p *plot.Plot) {
	toX, toY := p.Transforms(&c)
	sorted := slices.Clone(e.all)
	slices.SortFunc(sorted, func(a, b endLabel) int {
		if a.at.Y < b.at.Y {
			return -1
		}
		return 1
	})
	at := make([]vg.Length, len(sorted))
	for i, l := range sorted {
		at[i] = toY(l.at.Y)
	}
	for i, y := range apart(at, 15) {
		l := sorted[i]
		c.FillText(e.style(l.look), vg.Point{X: toX(l.at.X) + 10, Y: y}, l.look.name)
	}
}

// apart moves ascending positions so that neighbours are at least d from each other, none
// further than it must.
func apart(at []vg.Length, d vg.Length) []vg.Length {
	at = slices.Clone(at)
	for range 200 {
		moved := false
		for i := 1; i < len(at); i++ {
			if lack := d - (at[i] - at[i-1]); lack > 0.01 {
				at[i-1] -= lack / 2
				at[i] += lack / 2
				moved = true
			}
		}
		if !moved {
			break
		}
	}
	return at
}

// ticksOf are round numbers from low to high.
func ticksOf(a axis, low, high float64) (ticks plot.ConstantTicks) {
	values := a.ticks
	switch {
	case len(values) > 0:
	case a.log:
		values = logTicks(low, high)
	default:
		values = linearTicks(high)
	}
	for _, v := range values {
		ticks = append(ticks, plot.Tick{Value: v, Label: a.write(v)})
	}
	return ticks
}

// logTicks are 1, 2 and 5 times the powers of ten; over more than two and a half decades
// the powers alone.
func logTicks(low, high float64) (all []float64) {
	steps := []float64{1, 2, 5}
	if high/low > 300 {
		steps = steps[:1]
	}
	for e := math.Floor(math.Log10(low)); e <= math.Ceil(math.Log10(high)); e++ {
		for _, m := range steps {
			if v := m * math.Pow(10, e); v >= low/1.15 && v <= high*1.1 {
				all = append(all, v)
			}
		}
	}
	return all
}

// linearTicks are four to six from 0 to above high.
func linearTicks(high float64) (all []float64) {
	if high <= 0 {
		return []float64{0, 1}
	}
	unit := math.Pow(10, math.Floor(math.Log10(high/4)))
	for _, m := range []float64{1, 2, 2.5, 5, 10} {
		if high/(m*unit) <= 5.5 {
			unit *= m
			break
		}
	}
	for v := 0.0; ; v += unit {
		all = append(all, v)
		if v >= high {
			return all
		}
	}
}

// bar is one candidate in one group. What it is says the text at its end.
type bar struct {
	candidate string
	parts     []float64 // one after the other, each paler than the one before
	text      string
}

func (b bar) length() (sum float64) {
	for _, v := range b.parts {
		sum += v
	}
	return sum
}

type group struct {
	label string
	bars  []bar
}

// barChart draws bars from left to right in groups, with their values at their ends. A bar
// whose group has only one takes its name from the group.
func barChart(title, about string, groups []group) *card {
	const thick, space = vg.Length(15), vg.Length(14)
	var names []string
	n, high := 0, 0.0
	for _, g := range groups {
		for _, b := range g.bars {
			n++
			high = max(high, b.length())
			if !slices.Contains(names, b.candidate) {
				names = append(names, b.candidate)
			}
		}
	}
	legend := slices.ContainsFunc(groups, func(g group) bool { return len(g.bars) > 1 })
	if !legend {
		names = nil
	}
	c := newCard(title, about, headOf(about, names)+vg.Length(n)*(thick+3)+vg.Length(len(groups))*space+margin)
	if legend {
		c.legend(names)
	}
	st := style(plain, ink, false, text.XRight, text.YCenter)
	left, right := vg.Length(0), vg.Length(0)
	values := style(small, grey, false, text.XLeft, text.YCenter)
	for _, g := range groups {
		left = max(left, widthOf(st, g.label))
		for _, b := range g.bars {
			right = max(right, widthOf(values, b.text))
		}
	}
	x0 := c.body.Min.X + left + 12
	scale := (c.body.Max.X - x0 - right - 12) / vg.Length(max(high, 1e-12))
	y := c.body.Max.Y
	c.all.SetColor(border)
	c.all.SetLineWidth(1)
	for _, g := range groups {
		top := y
		for _, b := range g.bars {
			x := x0
			for i, v := range b.parts {
				c.all.SetColor(paler(lookOf(b.candidate).color, i))
				end := x + vg.Length(v)*scale
				c.all.Fill(rectangle(x, y-thick, end, y))
				x = end
			}
			c.all.FillText(values, vg.Point{X: x + 6, Y: y - thick/2}, b.text)
			y -= thick + 3
		}
		c.all.FillText(st, vg.Point{X: x0 - 10, Y: (top + y + 3) / 2}, g.label)
		y -= space
	}
	var base vg.Path
	base.Move(vg.Point{X: x0 - 1, Y: c.body.Max.Y + 4})
	base.Line(vg.Point{X: x0 - 1, Y: y + space - 1})
	c.all.SetColor(border)
	c.all.Stroke(base)
	return c
}

// bounds is what a candidate's waits were: the median, the 99th percentile and the longest.
type bounds struct {
	candidate     string
	p50, p99, max float64
	text          string
}

type boundsGroup struct {
	label string
	all   []bounds
}

// rangeChart draws a dot at the median, a thick line to the 99th percentile and a thin one
// to the longest, on a logarithmic axis.
func rangeChart(title, about string, x axis, groups []boundsGroup) *card {
	const row, space = vg.Length(21), vg.Length(16)
	n, low, high := 0, math.Inf(1), 0.0
	var names []string
	for _, g := range groups {
		for _, b := range g.all {
			n++
			low, high = min(low, b.p50), max(high, b.max)
			if !slices.Contains(names, b.candidate) {
				names = append(names, b.candidate)
			}
		}
	}
	alone := len(groups) == 1 // the names then stand at the rows
	if alone {
		names = nil
	}
	c := newCard(title, about, headOf(about, names)+vg.Length(n)*row+vg.Length(len(groups))*space+38)
	if !alone {
		c.legend(names)
	}
	st := style(plain, ink, false, text.XRight, text.YCenter)
	values := style(small, grey, false, text.XLeft, text.YCenter)
	left, right := vg.Length(0), vg.Length(0)
	for _, g := range groups {
		left = max(left, widthOf(st, g.label))
		for _, b := range g.all {
			right = max(right, widthOf(values, b.text))
			if alone {
				left = max(left, widthOf(st, nameOf(b.candidate)))
			}
		}
	}
	x0, x1 := c.body.Min.X+left+16, c.body.Max.X-right-14
	low, high = low/1.3, high*1.05
	at := func(v float64) vg.Length {
		return x0 + (x1-x0)*vg.Length(math.Log(max(v, low)/low)/math.Log(high/low))
	}
	foot := c.body.Min.Y + 18
	for _, v := range logTicks(low*1.15, high/1.1) {
		var p vg.Path
		p.Move(vg.Point{X: at(v), Y: c.body.Max.Y + 4})
		p.Line(vg.Point{X: at(v), Y: foot})
		c.all.SetColor(faint)
		c.all.SetLineWidth(1)
		c.all.Stroke(p)
		c.all.FillText(style(small, grey, false, text.XCenter, text.YTop), vg.Point{X: at(v), Y: foot - 4}, x.write(v))
	}
	y := c.body.Max.Y
	for _, g := range groups {
		top := y
		for _, b := range g.all {
			col, mid := lookOf(b.candidate).color, y-row/2
			for _, part := range []struct {
				from, to float64
				width    vg.Length
			}{{b.p99, b.max, 1.5}, {b.p50, b.p99, 6}} {
				var p vg.Path
				p.Move(vg.Point{X: at(part.from), Y: mid})
				p.Line(vg.Point{X: at(part.to), Y: mid})
				c.all.SetColor(col)
				c.all.SetLineWidth(part.width)
				c.all.Stroke(p)
			}
			c.all.DrawGlyph(draw.GlyphStyle{Color: ink, Radius: 4, Shape: draw.CircleGlyph{}}, vg.Point{X: at(b.p50), Y: mid})
			c.all.FillText(values, vg.Point{X: x1 + 10, Y: mid}, b.text)
			if alone {
				c.all.FillText(st, vg.Point{X: x0 - 12, Y: mid}, nameOf(b.candidate))
			}
			y -= row
		}
		c.all.FillText(st, vg.Point{X: x0 - 12, Y: (top + y) / 2}, g.label)
		y -= space
	}
	return c
}
