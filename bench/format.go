package main

import (
	"fmt"
	"strconv"
	"time"
)

func (s spread) String() string {
	if s.Count == 0 {
		return "-"
	}
	return short(s.P50) + " / " + short(s.P99) + " / " + short(s.Max)
}

func (r ratio) String() string {
	if r.Median == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f (%.2f-%.2f)", r.Median, r.Min, r.Max)
}

// short writes a duration with three digits.
func short(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%.3gµs", float64(d)/1e3)
	case d < time.Second:
		return fmt.Sprintf("%.3gms", float64(d)/1e6)
	default:
		return fmt.Sprintf("%.3gs", d.Seconds())
	}
}

func micros(d time.Duration) string { return fmt.Sprintf("%.1fµs", float64(d)/1e3) }

func percent(v float64) string { return fmt.Sprintf("%.1f%%", 100*v) }

func number(v float64) string {
	if v < 100 {
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

// rate writes a number of things per second.
func rate(v float64) string { return number(v) }
