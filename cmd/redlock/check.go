package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

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

With --settle it leaves the memory marks that are missing, as a client does that locks, and waits
until each node may vote: between the restarts of two nodes, and before a deployment goes on.

Exit status: 0 if nothing critical was found, 1 if something was, no majority of nodes
could be asked, or --settle was over before each node could vote; 2 for a fault in the command line.`,
		Example: "  redlock check\n  redlock check --settle=2m --ttl 30s\n  redlock check --json | jq '.findings[] | select(.severity == \"critical\")'",
		Args:    noArgs, ValidArgsFunction: cobra.NoFileCompletions,
	}
	s := connectFlags(cmd)
	asked := cmd.Flags().Bool("json", false, "one JSON object")
	within := cmd.Flags().Duration("settle", 0, "wait until each node may vote, for `this long` at most")
	cmd.Flags().Lookup("settle").NoOptDefVal = "5m"
	ttl := cmd.Flags().Duration("ttl", 10*time.Second, "the longest TTL of your locks, for which a node that restarted has no vote")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("settle") && *within <= 0 {
			return &usageError{fmt.Errorf("--settle is %v: must be positive", *within)}
		}
		nodes, err := s.operate(admin.Options{TTL: *ttl})
		twice := error(nil)
		if errors.Is(err, redlock.ErrDuplicateNode) {
			twice = err
			nodes, err = s.operateTwice(admin.Options{TTL: *ttl})
		}
		if err != nil {
			return failure(cmd, *asked, "", err)
		}
		defer nodes.Close()
		var report admin.Report
		unsettled := ""
		if *within > 0 {
			report, unsettled, err = s.settle(cmd.Context(), nodes, *within, *ttl, cmd.ErrOrStderr())
		} else {
			report, err = nodes.Check(cmd.Context())
		}
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
		switch {
		case *asked:
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
		case report.Nodes != nil || report.Findings != nil: // else none was asked
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
		case err == nil && unsettled != "" && cmd.Context().Err() != nil:
			return errors.New("interrupted before all may vote: " + unsettled)
		case err == nil && unsettled != "":
			return fmt.Errorf("not settled within %v: %s", *within, unsettled)
		default:
			return err
		}
	}
	return cmd
}

// settleEvery is how often settle asks, at most.
const settleEvery = time.Second

// settle leaves the marks that are missing, and asks until each node may vote or the time is over. It
// returns what was learned last, and which nodes may not vote.
func (s settings) settle(ctx context.Context, nodes *admin.Nodes, within, ttl time.Duration, progress io.Writer) (report admin.Report, unsettled string, err error) {
	addrs, c, err := s.nodes()
	if err != nil {
		return report, "", &usageError{err}
	}
	end := time.Now().Add(within)
	last := ""
	for {
		soon, cancel := context.WithTimeout(ctx, max(3*operatorPatience, time.Until(end)/10))
		// What Open writes on the nodes that answer is there, whether they are a majority or not.
		rl, err := redlock.Open(soon, addrs, &redlock.Options{TTL: ttl, KeyPrefix: c.KeyPrefix, TLS: c.tls})
		cancel()
		if err == nil {
			_ = rl.Close()
		} else if errors.Is(err, redlock.ErrInvalid) {
			return report, "", err
		}
		twice := errors.Is(err, redlock.ErrDuplicateNode)     // which the report says
		report, err = nodes.Check(context.WithoutCancel(ctx)) // an interrupted one says how far it came
		unsettled = ""
		var longest time.Duration
		var names []string
		for _, n := range report.Nodes {
			switch {
			case n.Err != nil:
				names, unsettled = append(names, n.Node), unsettled+"; "+n.Node+" does not serve us"
			case n.BarredFor > 0:
				names, unsettled = append(names, n.Node), unsettled+fmt.Sprintf("; %s may vote in %v", n.Node, n.BarredFor.Round(time.Second))
				longest = max(longest, n.BarredFor)
			case n.NoVote != nil:
				names, unsettled = append(names, n.Node), unsettled+"; "+n.Node+" has no vote: "+n.NoVote.Error()
			}
		}
		unsettled = strings.TrimPrefix(unsettled, "; ")
		left := time.Until(end)
		if unsettled == "" && err == nil || twice || left <= 0 || ctx.Err() != nil {
			return report, unsettled, err
		}
		if now := strings.Join(names, " "); now != last {
			fmt.Fprintln(progress, "redlock: waiting: "+oneLine(errors.New(unsettled)))
			last = now
		}
		pause := settleEvery
		if longest > 0 {
			pause = min(pause, longest)
		}
		sleep(ctx, min(pause, left))
	}
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
