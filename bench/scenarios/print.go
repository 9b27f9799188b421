package scenarios

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Report is what a run measured, and with what.
type Report struct {
	Go      string            `json:"go"`
	OS      string            `json:"os"`
	CPUs    int               `json:"cpus"`
	Redis   string            `json:"redis"`
	Modules map[string]string `json:"modules"`
	Results []Result          `json:"results"`
}

// JSON writes the report for programs.
func (r *Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// List writes which scenarios there are.
func List(w io.Writer) {
	for _, s := range all {
		fmt.Fprintf(w, "%3d  %s\n", s.Number, s.Title)
	}
}

// Print writes results of one scenario as a table: a line for each library, a column for
// each fact. What was said follows below, since it is long.
func Print(w io.Writer, results []Result) error {
	if len(results) == 0 {
		return nil
	}
	fmt.Fprintf(w, "\n%d  %s\n", results[0].Number, results[0].Title)
	columns := columnsOf(results)
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	if len(columns) > 0 {
		fmt.Fprintf(t, "  \t%s\n", strings.Join(columns, "\t"))
	}
	for _, r := range results {
		if len(columns) == 0 {
			break
		}
		fmt.Fprintf(t, "  %s", r.Library)
		for _, c := range columns {
			fmt.Fprintf(t, "\t%s", valueOf(r, c))
		}
		fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, r := range results {
		for _, f := range r.Facts {
			if f.Text != "" {
				fmt.Fprintf(w, "    %s: %s: %s\n", r.Library, f.Name, f.Text)
			}
		}
		if r.Skipped != "" {
			fmt.Fprintf(w, "    %s: not played: %s\n", r.Library, r.Skipped)
		}
		if r.Error != "" {
			fmt.Fprintf(w, "    %s: NOT FINISHED: %s\n", r.Library, r.Error)
		}
	}
	return nil
}

// columnsOf are the facts with values that are short, in the order of their first
// occurrence.
func columnsOf(results []Result) (columns []string) {
	for _, r := range results {
		for _, f := range r.Facts {
			if f.Text == "" && !slices.Contains(columns, f.Name) {
				columns = append(columns, f.Name)
			}
		}
	}
	return columns
}

func valueOf(r Result, column string) string {
	for _, f := range r.Facts {
		if f.Name == column {
			return f.String()
		}
	}
	return "-"
}
