package main

import (
	"fmt"
	"strconv"
	"time"
)

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
