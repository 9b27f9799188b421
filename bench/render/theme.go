package main

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"regexp"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// How all plots look: a white card, so that they can be read on a dark page too; text
// without serifs; one colour for each library on all of them. The colours are those of
// Okabe and Ito and of Tol, which colour-blind people tell apart.
var (
	ink    = color.RGBA{0x1e, 0x29, 0x3b, 0xff}
	grey   = color.RGBA{0x47, 0x55, 0x69, 0xff}
	faint  = color.RGBA{0xe2, 0xe8, 0xf0, 0xff}
	border = color.RGBA{0xcb, 0xd5, 0xe1, 0xff}
)

// look is how a candidate is called and drawn.
type look struct {
	name   string
	color  color.Color
	dashed bool
}

var looks = map[string]look{
	"redlock":          {"redlock (this)", color.RGBA{0x00, 0x72, 0xb2, 0xff}, false},
	"redlock-fenced":   {"redlock, fenced", color.RGBA{0x56, 0xb4, 0xe9, 0xff}, false},
	"redsync":          {"redsync", color.RGBA{0xd5, 0x5e, 0x00, 0xff}, false},
	"redsync-failfast": {"redsync, fail fast", color.RGBA{0xe6, 0x9f, 0x00, 0xff}, false},
	"redsync-5ms":      {"redsync, every 5 ms", color.RGBA{0xf0, 0xc9, 0x5c, 0xff}, false},
	"rueidislock-1":    {"rueidislock, 1 key", color.RGBA{0x7f, 0xce, 0xb9, 0xff}, false},
	"rueidislock-3":    {"rueidislock", color.RGBA{0x00, 0x9e, 0x73, 0xff}, false},
	"bsm":              {"bsm, one server", color.RGBA{0xcc, 0x79, 0xa7, 0xff}, false},
	"bare":             {"bare lane", color.RGBA{0x64, 0x74, 0x8b, 0xff}, true},
	"bare-resp":        {"bare lane without go-redis", color.RGBA{0x33, 0x41, 0x55, 0xff}, true},
	"postgres-lock":    {"PostgreSQL, advisory", color.RGBA{0x33, 0x22, 0x88, 0xff}, false},
	"postgres-row":     {"PostgreSQL, row", color.RGBA{0x66, 0x5a, 0xb5, 0xff}, false},
	"postgres-version": {"PostgreSQL, version", color.RGBA{0xa3, 0x9b, 0xd6, 0xff}, false},
	"etcd":             {"etcd", color.RGBA{0x99, 0x99, 0x33, 0xff}, false},
	"zookeeper":        {"ZooKeeper", color.RGBA{0x88, 0x22, 0x55, 0xff}, false},
	"sqlite":           {"SQLite", color.RGBA{0x92, 0x6c, 0x42, 0xff}, false},
}

func lookOf(candidate string) look {
	if l, ok := looks[candidate]; ok {
		return l
	}
	return look{candidate, grey, false}
}

func nameOf(candidate string) string { return lookOf(candidate).name }

const (
	width  = vg.Length(760)
	margin = vg.Length(20)
	plain  = vg.Length(13)
	small  = vg.Length(12)
	large  = vg.Length(17)
)

func init() {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	plot.DefaultTextHandler = anchored{text.Plain{Fonts: font.DefaultCache}}
}

// Fonts of readers may be wider than the one that is measured here. So there is room for
// such a font, and words are tied to their ends or middles where they are aligned so, not
// to where they would begin.
const wider = 1.16

// anchored writes a mark before words that are not aligned to the left; svg turns it into
// an attribute. Words that are turned are as in text.Plain.
type anchored struct{ text.Plain }

const markMiddle, markEnd = "\ue001", "\ue002"

func (h anchored) Draw(c vg.Canvas, txt string, sty text.Style, pt vg.Point) {
	mark := map[text.XAlignment]string{text.XCenter: markMiddle, text.XRight: markEnd}[sty.XAlign]
	if mark == "" || sty.Rotation != 0 || txt == "" {
		h.Plain.Draw(c, txt, sty, pt)
		return
	}
	sty.XAlign = text.XLeft
	h.Plain.Draw(c, mark+txt, sty, pt)
}

func widthOf(st text.Style, s string) vg.Length { return st.Width(s) * wider }

func style(size vg.Length, c color.Color, bold bool, x text.XAlignment, y text.YAlignment) text.Style {
	f := font.From(plot.DefaultFont, size)
	if bold {
		f.Weight = 2 // golang.org/x/image/font.WeightBold
	}
	return text.Style{Color: c, Font: f, XAlign: x, YAlign: y, Handler: plot.DefaultTextHandler}
}

// card is a picture with its title and its sub-title; body is what is left for the plot.
type card struct {
	canvas *vgsvg.Canvas
	all    draw.Canvas
	height vg.Length
	title  string
	about  string
	body   draw.Canvas
}

func newCard(title, about string, height vg.Length) *card {
	c := &card{canvas: vgsvg.New(width, height), height: height, title: title, about: about}
	c.all = draw.New(c.canvas)
	r := vg.Length(8)
	var p vg.Path
	lo, hi := vg.Length(0.5), vg.Point{X: width - 0.5, Y: height - 0.5}
	p.Move(vg.Point{X: lo + r, Y: lo})
	p.Line(vg.Point{X: hi.X - r, Y: lo})
	p.Arc(vg.Point{X: hi.X - r, Y: lo + r}, r, -math.Pi/2, math.Pi/2)
	p.Line(vg.Point{X: hi.X, Y: hi.Y - r})
	p.Arc(vg.Point{X: hi.X - r, Y: hi.Y - r}, r, 0, math.Pi/2)
	p.Line(vg.Point{X: lo + r, Y: hi.Y})
	p.Arc(vg.Point{X: lo + r, Y: hi.Y - r}, r, math.Pi/2, math.Pi/2)
	p.Line(vg.Point{X: lo, Y: lo + r})
	p.Arc(vg.Point{X: lo + r, Y: lo + r}, r, math.Pi, math.Pi/2)
	p.Close()
	c.all.SetColor(color.White)
	c.all.Fill(p)
	c.all.SetColor(border)
	c.all.SetLineWidth(1)
	c.all.Stroke(p)
	top := height - margin
	c.all.FillText(style(large, ink, true, text.XLeft, text.YTop), vg.Point{X: margin, Y: top}, title)
	top -= 25
	st := style(plain, grey, false, text.XLeft, text.YTop)
	for _, line := range wrapped(st, about, width-2*margin) {
		c.all.FillText(st, vg.Point{X: margin, Y: top}, line)
		top -= 18
	}
	c.body = draw.Crop(c.all, margin, -margin, margin, top-12-height)
	return c
}

// wrapped breaks between words.
func wrapped(st text.Style, s string, limit vg.Length) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(s) {
		longer := strings.TrimSpace(line + " " + word)
		if widthOf(st, longer) > limit && line != "" {
			lines, longer = append(lines, line), word
		}
		line = longer
	}
	return append(lines, line)
}

// headOf is how high the title, these words below it, and the legend are.
func headOf(about string, legend []string) vg.Length {
	st := style(plain, grey, false, text.XLeft, text.YTop)
	h := margin + 25 + 18*vg.Length(len(wrapped(st, about, width-2*margin))) + 12
	if legend != nil {
		rows := 1
		legendPlaces(legend, func(_ string, _ vg.Length, row int) { rows = row + 1 })
		h += 20*vg.Length(rows) + 2
	}
	return h
}

// legendPlaces tells where the names of a legend begin, and in which row.
func legendPlaces(candidates []string, place func(name string, x vg.Length, row int)) {
	st := style(small, ink, false, text.XLeft, text.YCenter)
	x, row := margin, 0
	for _, name := range candidates {
		w := 17 + widthOf(st, lookOf(name).name)
		if x > margin && x+w > width-margin {
			x, row = margin, row+1
		}
		place(name, x, row)
		x += w + 14
	}
}

// legend draws rows of names above the body.
func (c *card) legend(candidates []string) {
	st := style(small, ink, false, text.XLeft, text.YCenter)
	first, last := c.body.Max.Y-4, c.body.Max.Y
	legendPlaces(candidates, func(name string, x vg.Length, row int) {
		y := first - 20*vg.Length(row)
		c.all.SetColor(lookOf(name).color)
		c.all.Fill(rectangle(x, y-6, x+11, y+5))
		c.all.FillText(st, vg.Point{X: x + 17, Y: y}, lookOf(name).name)
		last = y
	})
	c.body.Max.Y = last - 18
}

func rectangle(x0, y0, x1, y1 vg.Length) (p vg.Path) {
	p.Move(vg.Point{X: x0, Y: y0})
	p.Line(vg.Point{X: x1, Y: y0})
	p.Line(vg.Point{X: x1, Y: y1})
	p.Line(vg.Point{X: x0, Y: y1})
	p.Close()
	return p
}

// svg is the picture. Readers who cannot see it, or point at it, are told what it shows;
// where Liberation Sans is missing, a font takes its place that is as wide.
func (c *card) svg() ([]byte, error) {
	var b bytes.Buffer
	if _, err := c.canvas.WriteTo(&b); err != nil {
		return nil, err
	}
	s := b.String()
	for _, family := range []string{"Liberation Sans", "LiberationSans"} {
		s = strings.ReplaceAll(s, "font-family:"+family+";", "font-family:Liberation Sans,Arial,Helvetica,sans-serif;")
	}
	s = markedText.ReplaceAllStringFunc(s, func(t string) string {
		anchor := "middle"
		if strings.Contains(t, markEnd) {
			anchor = "end"
		}
		t = strings.NewReplacer(markMiddle, "", markEnd, "").Replace(t)
		return strings.Replace(t, "<text ", `<text text-anchor="`+anchor+`" `, 1)
	})
	s = strings.Replace(s, fmt.Sprintf(`width="%.0fpt" `, width), fmt.Sprintf(`width="%.0f" `, width), 1)
	s = strings.Replace(s, fmt.Sprintf(`height="%.0fpt" `, c.height), fmt.Sprintf(`height="%.0f" role="img" `, c.height), 1)
	at := strings.Index(s, "<svg ")
	end := at + strings.Index(s[at:], ">") + 1
	s = s[:end] + "\n<title>" + escape(c.title) + "</title>\n<desc>" + escape(c.about) + "</desc>" + s[end:]
	return []byte(s), nil
}

var markedText = regexp.MustCompile(`<text [^>]*>[` + markMiddle + markEnd + `][^<]*</text>`)

var escape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace

// quiet makes the axes of a plot: grey words, no lines, no ticks but their labels.
func quiet(p *plot.Plot) {
	p.BackgroundColor = color.Transparent
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.LineStyle.Width, a.Tick.LineStyle.Width, a.Tick.Length = 0, 0, 4
		a.Padding = 4
		a.Tick.Label.Font.Size, a.Tick.Label.Color = small, grey
		a.Label.TextStyle.Font.Size, a.Label.TextStyle.Color = small, grey
		a.Label.Padding = 4
	}
}

// count writes a number as people do: 0, 0.4, 4.2, 42, 4,200, 42,000.
func count(v float64) string {
	switch {
	case v == 0:
		return "0"
	case math.Abs(v) < 0.1:
		return fmt.Sprintf("%.2f", v)
	case math.Abs(v) < 9.95:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0")
	}
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// rounded writes a rate with three digits, for more are noise.
func rounded(v float64) string {
	if v <= 0 {
		return "0"
	}
	if v < 100 {
		return count(v)
	}
	unit := math.Pow(10, math.Floor(math.Log10(v))-2)
	return count(math.Round(v/unit) * unit)
}

// span writes a duration with two or three digits.
func span(d time.Duration) string {
	unit, name := time.Microsecond, "µs"
	switch {
	case d == 0:
		return "0"
	case d >= time.Second-time.Millisecond/2:
		unit, name = time.Second, "s"
	case d >= time.Millisecond-time.Microsecond/2:
		unit, name = time.Millisecond, "ms"
	}
	v := float64(d) / float64(unit)
	if v < 9.95 {
		return fmt.Sprintf("%.1f %s", v, name)
	}
	return count(v) + " " + name
}

// paler is a colour mixed with white, n times.
func paler(c color.Color, n int) color.Color {
	r, g, b, _ := c.RGBA()
	mix := func(v uint32) uint8 {
		x := float64(v >> 8)
		for range n {
			x = 255 - (255-x)*0.45
		}
		return uint8(x)
	}
	return color.RGBA{mix(r), mix(g), mix(b), 0xff}
}
