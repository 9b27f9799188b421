package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/quorumlock/redlock/admin"
)

// printReport shows a report. On a terminal that is too narrow for its tables they have fewer
// columns, and a finding about several nodes is there once.
func printReport(w io.Writer, r admin.Report) {
	paint := paletteFor(w)
	joined := together(r)
	whole := paint.report(joined)
	wide := slices.ContainsFunc(strings.Split(joined.String(), "\n"), func(line string) bool {
		return columns(line) > widthOf(w)
	})
	if !isTerminal(w) || !wide {
		_, _ = io.WriteString(w, whole)
		return
	}
	t := table{
		heading: []string{"NODE", "STATE", "LATENCY", "ROLE", "VERSION", "UPTIME"},
		bad:     func(i int) bool { return unwell(r, r.Nodes[i]) },
		spare:   []int{4, 3, 2},
	}
	for _, n := range r.Nodes {
		t.rows = append(t.rows, []string{n.Node, worst(r, n.Node).Code, orDash(n.Latency.Round(10 * time.Microsecond)), or(n.Role), or(n.Version), or(inTable(uptime(n.Uptime)))})
	}
	t.print(w, paint)
	fmt.Fprintln(w)
	if len(r.Findings) == 0 {
		fmt.Fprintln(w, paint.good("Nothing found."))
	}
	var told []admin.Finding
	for _, f := range r.Findings {
		same := func(g admin.Finding) bool {
			return f.Severity == g.Severity && f.Code == g.Code && f.Message == g.Message && f.Advice == g.Advice
		}
		if slices.ContainsFunc(told, same) {
			continue
		}
		told = append(told, f)
		var nodes []string
		for _, g := range r.Findings {
			if same(g) && g.Node != "" {
				nodes = append(nodes, g.Node)
			}
		}
		head := f.Severity.String() + ", " + f.Code
		if len(nodes) > 0 {
			head += ": " + strings.Join(nodes, ", ")
		}
		ink := func(a ...any) string { return fmt.Sprint(a...) }
		switch f.Severity {
		case admin.SeverityCritical:
			ink = paint.bad
		case admin.SeverityWarning:
			ink = paint.odd
		}
		fmt.Fprintln(w, ink(strings.TrimSuffix(paragraph(w, printable(head+": "+f.Message)), "\n")))
		fmt.Fprint(w, paragraph(w, "  -> "+printable(f.Advice)))
	}
}

// together is a report in which information about several nodes is there once. What is worse has a
// line for each, with its name at the same place.
func together(r admin.Report) admin.Report {
	var findings []admin.Finding
	nodes := map[admin.Finding][]string{}
	for _, f := range r.Findings {
		name := f.Node
		if f.Severity == admin.SeverityInfo {
			f.Node = ""
		}
		if f.Node != "" || nodes[f] == nil {
			findings = append(findings, f)
		}
		nodes[f] = append(nodes[f], name)
	}
	for i, f := range findings {
		names := nodes[f]
		findings[i].Node = strings.Join(slices.Compact(names), ", ")
		if len(names) > 1 && len(names) == len(r.Nodes) {
			findings[i].Node = fmt.Sprintf("all %d nodes", len(names))
		}
	}
	r.Findings = findings
	return r
}

// inTable is an uptime in a column of that name, without the spaces of pages, which are not printed.
func inTable(uptime string) string {
	return strings.NewReplacer("up\u00a0", "", "\u00a0", " ").Replace(uptime)
}

// worst is the worst finding of a node, if that is more than good to know, else "ok". Findings are ordered
// by severity.
func worst(r admin.Report, node string) admin.Finding {
	for _, f := range r.Findings {
		if f.Node == node && f.Severity > admin.SeverityInfo {
			return f
		}
	}
	return admin.Finding{Code: "ok"}
}

// unwell is a node of no use.
func unwell(r admin.Report, n admin.NodeReport) bool {
	return n.Err != nil || worst(r, n.Node).Severity == admin.SeverityCritical
}

func or(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func orDash(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return d.String()
}
