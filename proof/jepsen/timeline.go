package jepsen

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"html"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/quorumlock/redlock/internal/testing/history"
)

//go:embed timeline.svg.tmpl
var timelineTemplate string

// Measures of the picture, in pixels.
const (
	left      = 120 // of the plot
	plotWidth = 1800
	top       = 62
	laneH     = 11 // a client has a lane for each kind of counter
	nodeH     = 20
	rowGap    = 8
)

// longestPicture is how much of a run is drawn: more would not be readable.
const longestPicture = int64(time.Minute)

var (
	plainFills  = []string{"#08519c", "#3182bd", "#9ecae1"}
	fencedFills = []string{"#006d2c", "#31a354", "#a1d99b"}
	eventFills  = map[string]string{
		"pause": "url(#hatch)", "kill": "#404040", "stop": "#fdae61", "killed": "#555555", "forgets": "#762a83", "cut": "#f46d43", "partial": "#fee08b", "clock": "#74add1",
		"barred": "#c2a5cf", "version": "#8c510a",
	}
	eventInk = map[string]string{"killed": "white", "forgets": "white", "kill": "white"}
)

const (
	lostFill    = "#d7191c"
	refusedFill = "#e66101"
	brokenFill  = "#ff00aa"
)

type (
	gridLine struct {
		X     string
		Label string
		Major bool
	}
	rowNote struct {
		Name string
		Y    int
	}
	row struct {
		Name       string
		Text, Line int
		Notes      []rowNote
	}
	bar struct {
		X, W        string
		Y, H        int
		Fill, Title string
		Label, Ink  string
		LabelX      string
		LabelY      int
	}
	shape struct{ D, Fill string }
	mark  struct {
		X           string
		Y           int
		Fill, Title string
	}
	legendEntry struct {
		X, Y, Box, TextX int
		Name, Fill       string
		Mark             bool
	}
	picture struct {
		Width, Height, Top, Bottom, Axis, Right int
		Title, Subtitle                         string
		Grid                                    []gridLine
		Rows                                    []row
		Bars                                    []bar
		Paths                                   []shape
		Marks                                   []mark
		Legend                                  []legendEntry
		from, to                                int64
	}
)

// window is the part of the run that is drawn: all of it, or the minute around what is most worth seeing.
func (r *Report) window() (from, to int64) {
	if r.Length <= longestPicture {
		return 0, max(r.Length, 1)
	}
	at := r.Length
	for _, all := range [][]int64{r.violationTimes(), r.lostTimes()} {
		if len(all) > 0 {
			at = all[0]
			break
		}
	}
	from = min(max(at-longestPicture/2, 0), r.Length-longestPicture)
	return from, from + longestPicture
}

func (r *Report) violationTimes() (all []int64) {
	for _, v := range slices.Concat(r.Exclusion, r.Fences, r.Linear) {
		all = append(all, v.At)
	}
	slices.Sort(all)
	return all
}

func (r *Report) lostTimes() (all []int64) {
	for _, in := range r.Lost {
		all = append(all, in.At)
	}
	return all // in order
}

// timeline draws who held what, and what was broken at the time.
func (r *Report) timeline() ([]byte, error) {
	p := &picture{Width: left + plotWidth + 20, Right: left + plotWidth, Top: top}
	p.from, p.to = r.window()
	kinds := r.Config.kinds()
	clientH := laneH * len(kinds)
	clientY := func(i int) int { return top + 4 + i*(clientH+rowGap) }
	nodeY := func(i int) int { return clientY(r.Config.Clients) + 14 + i*(nodeH+rowGap) }
	p.Bottom = nodeY(r.Config.Nodes)
	p.Axis = top - 6
	p.Height = p.Bottom + 60

	verdict := "OK"
	if !r.OK {
		verdict = "VIOLATION: " + strings.Join(r.Reasons, "; ")
	}
	p.Title = html.EscapeString(verdict)
	p.Subtitle = fmt.Sprintf("%s to %s of a run of %v, seed %d, leases of %v. Hover over a fault or a mark to read what it was.", seconds(p.from), seconds(p.to),
		r.Duration(), r.Config.Seed, r.Config.TTL)
	p.grid()
	for i := range r.Config.Clients {
		rw := row{Name: fmt.Sprint("client ", i), Text: clientY(i) + clientH/2 + 4, Line: clientY(i) + clientH + rowGap/2}
		for k, kind := range kinds {
			rw.Notes = append(rw.Notes, rowNote{kind, clientY(i) + k*laneH + 9})
		}
		p.Rows = append(p.Rows, rw)
	}
	for i := range r.Config.Nodes {
		p.Rows = append(p.Rows, row{Name: fmt.Sprint("node ", i), Text: nodeY(i) + 14, Line: nodeY(i) + nodeH + rowGap/2})
	}

	for _, e := range r.Events {
		y, h := clientY(max(e.Client, 0)), clientH
		switch {
		case e.Kind == "barred": // beneath what else happens to the node
			y, h = nodeY(e.Node)+nodeH, 4
		case e.Node >= 0:
			y, h = nodeY(e.Node), nodeH
		}
		p.event(e, y, h)
	}
	lane := func(client int, key string) int { return clientY(client) + laneH*slices.Index(kinds, kindOf(key)) }
	p.claims(r.history, lane)
	for _, up := range r.updates {
		if up.Result == refused {
			at := max(up.Return, up.Checked)
			p.mark(at, lane(up.Client, up.Key), refusedFill, fmt.Sprintf("%s: the store refused client %d's write to %s", seconds(at), up.Client, up.Key))
		}
	}
	for _, in := range r.Lost {
		for _, w := range in.Writers {
			if w.late() || !in.Explained {
				at := max(w.Return, w.Checked)
				p.mark(at, lane(w.Client, w.Key), lostFill, fmt.Sprintf("%s: %d updates of %s lost: %s", seconds(at), in.Lost, in.Key, in.Cause))
			}
		}
	}
	for _, v := range slices.Concat(r.Exclusion, r.Fences, r.Linear) {
		if len(v.Ops) > 0 {
			last := v.Ops[len(v.Ops)-1]
			p.mark(v.At, lane(last.Client, v.Key), brokenFill, v.Error())
		}
	}
	p.legend(kinds, r.Config.Old != "")

	t, err := template.New("timeline").Parse(timelineTemplate)
	if err != nil {
		return nil, err
	}
	out := new(bytes.Buffer)
	err = t.Execute(out, p)
	return out.Bytes(), err
}

func (p *picture) x(at int64) float64 {
	return left + plotWidth*float64(at-p.from)/float64(p.to-p.from)
}

func px(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }

func (p *picture) grid() {
	step := int64(time.Second)
	for i, at := 0, p.from-p.from%step; at <= p.to; i, at = i+1, at+step {
		if at < p.from {
			continue
		}
		g := gridLine{X: px(p.x(at)), Major: at/step%5 == 0}
		if g.Major || p.to-p.from <= 20*step {
			g.Label = fmt.Sprintf("%ds", at/step)
		}
		p.Grid = append(p.Grid, g)
	}
}

// event draws a fault, with as much of its text as there is room for.
func (p *picture) event(e Event, y, h int) {
	if e.To < p.from || e.From > p.to {
		return
	}
	x1, x2 := p.x(max(e.From, p.from)), p.x(min(e.To, p.to))
	b := bar{
		X: px(x1), W: px(max(x2-x1, 2)), Y: y, H: h, Fill: eventFills[e.Kind], Ink: cmp.Or(eventInk[e.Kind], "#222"),
		Title: html.EscapeString(fmt.Sprintf("%s to %s: %s %s", seconds(e.From), seconds(e.To), e.name(), e.Text)),
	}
	if room := int((x2 - x1 - 4) / 5); h == nodeH && room >= 4 {
		b.Label, b.LabelX, b.LabelY = html.EscapeString(e.Text[:min(room, len(e.Text))]), px(x1+2), y+h/2+3
	}
	p.Bars = append(p.Bars, b)
}

// claims draws what each client held, from the return of acquire to the call of release or the end of the lease.
func (p *picture) claims(ops []history.Op, lane func(int, string) int) {
	untils, releases := make(map[string]int64), make(map[string]int64)
	for _, op := range ops {
		switch {
		case op.Kind == history.Release:
			if at, ok := releases[op.Token]; !ok || op.Call < at {
				releases[op.Token] = op.Call
			}
		case op.Outcome == history.OK:
			untils[op.Token] = max(untils[op.Token], op.Until)
		}
	}
	paths := make(map[string]*strings.Builder)
	for _, op := range ops {
		if op.Kind != history.Acquire || op.Outcome != history.OK {
			continue
		}
		end := untils[op.Token]
		if at, ok := releases[op.Token]; ok {
			end = min(end, at)
		}
		if end < p.from || op.Return > p.to || end <= op.Return {
			continue
		}
		fills := plainFills
		if kindOf(op.Key) == fenced {
			fills = fencedFills
		}
		n, _ := strconv.Atoi(op.Key[strings.LastIndexByte(op.Key, '-')+1:])
		fill := fills[n%len(fills)]
		if paths[fill] == nil {
			paths[fill] = new(strings.Builder)
		}
		x1, x2 := p.x(max(op.Return, p.from)), p.x(min(end, p.to))
		w := px(max(x2-x1, 0.3))
		fmt.Fprintf(paths[fill], "M%s,%dh%sv%dh-%sz", px(x1), lane(op.Client, op.Key)+1, w, laneH-2, w)
	}
	for fill, d := range paths {
		p.Paths = append(p.Paths, shape{d.String(), fill})
	}
	slices.SortFunc(p.Paths, func(a, b shape) int { return cmp.Compare(a.Fill, b.Fill) })
}

func (p *picture) mark(at int64, y int, fill, title string) {
	if at < p.from || at > p.to {
		return
	}
	p.Marks = append(p.Marks, mark{px(p.x(at)), y + 4, fill, html.EscapeString(title)})
}

func (p *picture) legend(kinds []string, versions bool) {
	entries := []legendEntry{}
	for _, kind := range kinds {
		fills := plainFills
		if kind == fenced {
			fills = fencedFills
		}
		for i, f := range fills {
			entries = append(entries, legendEntry{Name: fmt.Sprintf("holds %s counter %d", kind, i), Fill: f})
		}
	}
	entries = append(entries,
		legendEntry{Name: "client stopped", Fill: eventFills["pause"]}, legendEntry{Name: "client killed", Fill: eventFills["kill"]},
		legendEntry{Name: "node stopped", Fill: eventFills["stop"]}, legendEntry{Name: "node killed, keeps its keys", Fill: eventFills["killed"]},
		legendEntry{Name: "node killed, forgets", Fill: eventFills["forgets"]}, legendEntry{Name: "restarted, no vote yet", Fill: eventFills["barred"]},
		legendEntry{Name: "node cut off or slow", Fill: eventFills["cut"]},
		legendEntry{Name: "for some clients only", Fill: eventFills["partial"]}, legendEntry{Name: "node's clock set back", Fill: eventFills["clock"]},
		legendEntry{Name: "stale write refused", Fill: refusedFill, Mark: true}, legendEntry{Name: "late write lost updates", Fill: lostFill, Mark: true},
		legendEntry{Name: "violation", Fill: brokenFill, Mark: true},
	)
	if versions {
		entries = append(entries, legendEntry{Name: "client replaced by the other version", Fill: eventFills["version"]})
	}
	for i, e := range entries {
		e.X, e.Y = 12+(i%9)*212, p.Bottom+22+(i/9)*18
		e.Box, e.TextX = e.Y-9, e.X+18
		p.Legend = append(p.Legend, e)
	}
}
