package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
)

func checkCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Look at the nodes for what breaks locks, and say what to do",
		Long: `Look at the nodes for what breaks locks: servers given twice, replicas, evictions, lost
writes, clocks that differ, missing permissions. Each finding says what it means and
what to do. REMEMBERS SINCE is since when a node has lost no data, by its memory mark. Nothing is
left on the nodes.

Exit status: 0 if nothing critical was found, 1 if something was or no majority of nodes
could be asked, 2 for a fault in the command line.`,
		Example: "  redlock check\n  redlock check --json | jq '.findings[] | select(.severity == \"critical\")'",
		Args:    noArgs, ValidArgsFunction: cobra.NoFileCompletions,
	}
	s := connectFlags(cmd)
	asked := cmd.Flags().Bool("json", false, "one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		nodes, err := s.operate(admin.Options{})
		twice := error(nil)
		if errors.Is(err, redlock.ErrDuplicateNode) {
			twice = err
			nodes, err = s.operateTwice(admin.Options{})
		}
		if err != nil {
			return failure(cmd, *asked, "", err)
		}
		defer nodes.Close()
		report, err := nodes.Check(cmd.Context())
		if twice != nil {
			report.Findings = sameServer(report.Findings, twice)
		}
		serve, answer := 0, 0
		for _, n := range report.Nodes {
			if n.Err == nil {
				serve++
			}
			if n.Reachable || n.Err != nil && noTrust(n.Err) {
				answer++
			}
		}
		if *asked {
			out := struct {
				admin.Report
				Error string `json:"error,omitempty"`
			}{Report: report}
			if err != nil {
				out.Error = err.Error()
			}
			var text strings.Builder
			_ = json.NewEncoder(&text).Encode(out)
			fmt.Fprint(cmd.OutOrStdout(), inShell(text.String())) // errors of nodes have hints, too
		} else {
			for i := range report.Findings {
				report.Findings[i].Message = inShell(report.Findings[i].Message)
			}
			printReport(cmd.OutOrStdout(), report)
			for _, note := range cutOff(answer) {
				fmt.Fprintln(cmd.OutOrStdout(), note)
			}
		}
		switch {
		case err == nil && report.Worst() == admin.SeverityCritical:
			return errors.New("there are critical findings")
		case errors.Is(err, admin.ErrNoQuorum) && cmd.Context().Err() == nil:
			return errors.New("no quorum: " + nodesThat(serve, len(report.Nodes), "serves", "serve") + fmt.Sprintf(" us, %d needed", report.Quorum))
		default:
			return err
		}
	}
	return cmd
}

// sameServer adds that an address is there twice, unless the server has said it by its run id.
func sameServer(found []admin.Finding, twice error) []admin.Finding {
	if slices.ContainsFunc(found, func(f admin.Finding) bool { return f.Code == "same-server" }) {
		return found
	}
	return slices.Insert(found, 0, admin.Finding{
		Severity: admin.SeverityCritical, Code: "same-server", Message: strings.TrimPrefix(oneLine(twice), "redlock: "),
		Advice: "give each server once; a database or a second name does not make another node",
	})
}

// report colours the lines of a report that say something bad, or that all is well.
func (p palette) report(r admin.Report) string {
	var b strings.Builder
	lost := make(map[string]bool)
	for _, n := range r.Nodes {
		lost[n.Node] = unwell(r, n)
	}
	for line := range strings.Lines(r.String()) {
		text := strings.TrimRight(line, " \n")
		first, _, _ := strings.Cut(text, " ")
		switch {
		case first == "NODE" || first == "SEVERITY":
			text = p.bold(text)
		case first == admin.SeverityCritical.String() || lost[first]:
			text = p.bad(text)
		case first == admin.SeverityWarning.String():
			text = p.odd(text)
		case text == "Nothing found.":
			text = p.good(text)
		}
		b.WriteString(text + "\n")
	}
	return b.String()
}
