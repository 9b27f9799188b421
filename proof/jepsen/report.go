package jepsen

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/quorumlock/redlock/internal/testing/history"
	"github.com/quorumlock/redlock/proof/linear"
)

// Files of a report.
const (
	TextFile     = "report.txt"
	JSONFile     = "report.json"
	TimelineFile = "timeline.svg"
	HistoryFile  = "history.jsonl"
)

//go:embed report.txt.tmpl
var textTemplate string

// write leaves the report in the run's folder.
func (r *Report) write() error {
	text := new(bytes.Buffer)
	t, err := template.New("report").Funcs(template.FuncMap{
		"seconds": seconds,
		"join":    strings.Join,
		"few":     few,
	}).Parse(textTemplate)
	if err != nil {
		return err
	}
	if err := t.Execute(text, r); err != nil {
		return err
	}
	all, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	picture, err := r.timeline()
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(r.file(TextFile), text.Bytes(), 0o644),
		os.WriteFile(r.file(JSONFile), append(all, '\n'), 0o644),
		os.WriteFile(r.file(TimelineFile), picture, 0o644),
		r.writeHistory(),
	)
}

func (r *Report) file(name string) string { return filepath.Join(r.Config.Out, name) }

func (r *Report) writeHistory() error {
	f, err := os.Create(r.file(HistoryFile))
	if err != nil {
		return err
	}
	w := history.NewWriter(f)
	for _, op := range r.history {
		if err := w.Write(op); err != nil {
			_ = f.Close()
			return err
		}
	}
	return f.Close()
}

// few are the violations that the text shows; report.json has all.
func few(all []linear.Violation) []linear.Violation { return all[:min(len(all), 20)] }

// Text is the report for people.
func (r *Report) Text() (string, error) {
	b, err := os.ReadFile(r.file(TextFile))
	return string(b), err
}

// Duration is how long clients worked.
func (r *Report) Duration() time.Duration { return time.Duration(r.Length).Round(time.Millisecond) }

// FaultCounts are the faults by kind, a line each.
func (r *Report) FaultCounts() []string {
	count := make(map[string]int)
	for _, e := range r.Events {
		if e.Kind == "barred" {
			continue // which is no fault but what the library does about one
		}
		text, _, _ := strings.Cut(e.Text, " for clients")
		if strings.HasPrefix(text, "slow by") {
			_, rest, _ := strings.Cut(text, "for all")
			text = "slow"
			if rest != "" {
				text += " for all" + rest
			}
		} else if e.Kind == "clock" {
			text = "clock set back and forward"
		}
		if e.Kind == "partial" {
			text += " for some clients"
		}
		count[text]++
	}
	var lines []string
	for text, n := range count {
		lines = append(lines, fmt.Sprintf("%5d  %s", n, text))
	}
	slices.Sort(lines)
	slices.Reverse(lines)
	return lines
}

// FaultLine is one line of the list of faults.
func (e Event) FaultLine() string {
	return fmt.Sprintf("%9s  %9s  %-9s %s", seconds(e.From), seconds(e.To), e.name(), e.Text)
}

// Kinds are the kinds of counters of the run, as configured.
func (r *Report) Kinds() string { return strings.Join(r.Config.kinds(), " and ") }

// Broken is how the run was sabotaged.
func (r *Report) Broken() string { return r.Config.Sabotage }
