package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/quorumlock/redlock"
)

// statusJSON is a status as --json prints it. Durations are seconds.
type statusJSON struct {
	Key     string       `json:"key"`
	Held    bool         `json:"held"`
	Token   string       `json:"token,omitempty"`
	Owner   string       `json:"owner,omitempty"`
	TTL     float64      `json:"ttl_seconds"`
	Waiters []waiterJSON `json:"waiters"`
	Nodes   []nodeJSON   `json:"nodes"`
	Error   string       `json:"error,omitempty"`
}

type waiterJSON struct {
	Owner  string  `json:"owner"`
	Waited float64 `json:"waited_seconds"`
}

type nodeJSON struct {
	Node    string  `json:"node"`
	Value   string  `json:"value,omitempty"`
	TTL     float64 `json:"ttl_seconds"`
	Waiting int     `json:"waiting"`
	Elapsed float64 `json:"elapsed_seconds"`
	Error   string  `json:"error,omitempty"`
}

func asJSON(s redlock.Status) statusJSON {
	j := statusJSON{
		Key: s.Key, Held: s.Held(), Token: s.Token, Owner: s.Owner, TTL: s.TTL.Seconds(),
		Waiters: []waiterJSON{}, Nodes: []nodeJSON{},
	}
	for _, w := range s.Waiters {
		j.Waiters = append(j.Waiters, waiterJSON{w.Owner, w.Waited.Seconds()})
	}
	for _, n := range s.Nodes {
		e := ""
		if n.Err != nil {
			e = n.Err.Error()
		}
		j.Nodes = append(j.Nodes, nodeJSON{n.Node, n.Value, n.TTL.Seconds(), n.Waiting, n.Elapsed.Seconds(), e})
	}
	return j
}

// leaseOf is how long a lease lasts, in words.
func leaseOf(d time.Duration) string {
	switch {
	case d < 0:
		return "no end"
	case d == 0:
		return "-"
	default:
		return d.Round(time.Millisecond).String()
	}
}

// forTime is leaseOf behind "for".
func forTime(d time.Duration) string {
	if d < 0 {
		return "ever"
	}
	return leaseOf(d)
}

// verdict says who holds the lock in one line.
func (p palette) verdict(s redlock.Status) string {
	switch {
	case !s.Held():
		return p.good(printable(s.Key + " is free"))
	case s.Owner != "":
		return p.odd(printable(fmt.Sprintf("%s is held by %s, token %s, for %s", s.Key, s.Owner, s.Token, forTime(s.TTL))))
	default:
		return p.odd(printable(fmt.Sprintf("%s is held, token %s, for %s", s.Key, s.Token, forTime(s.TTL))))
	}
}

// printable keeps keys and what servers say, which may be any bytes, from steering a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

func printStatus(w io.Writer, s redlock.Status) {
	paint := paletteFor(w)
	fmt.Fprintln(w, paint.verdict(s))
	var table bytes.Buffer
	t := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tHOLDER\tTTL\tWAITING\tANSWERED IN\tERROR")
	for _, n := range s.Nodes {
		value, failure := n.Value, ""
		if value == "" {
			value = "-"
		}
		if n.Err != nil {
			failure = n.Err.Error()
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\n", n.Node, printable(value), leaseOf(n.TTL), n.Waiting, n.Elapsed.Round(10*time.Microsecond), printable(failure))
	}
	_ = t.Flush()
	// Coloured afterwards, for escapes have a width in a table.
	row := -1
	for line := range strings.Lines(table.String()) {
		switch line = strings.TrimRight(line, " \n"); {
		case row < 0:
			line = paint.bold(line)
		case s.Nodes[row].Err != nil:
			line = paint.bad(line)
		}
		fmt.Fprintln(w, line)
		row++
	}
	for i, wt := range s.Waiters {
		fmt.Fprintf(w, "%d. %s has waited for %v\n", i+1, printable(wt.Owner), wt.Waited.Round(time.Millisecond))
	}
}

func statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status KEY",
		Short: "Who holds a lock, for how long yet, and who waits for it",
		Long: `Who holds a lock, for how long yet, and who waits for it: what each node says, and
what the majority makes of it. Nothing is changed.

Exit status: 0 if a majority of nodes answered, whether the lock is held or not; 1 if
not; 2 for a fault in the command line.`,
		Example: "  redlock status orders:42\n  redlock status --json orders:42 | jq .held",
		Args:    oneKey, ValidArgsFunction: cobra.NoFileCompletions,
	}
	s := connectFlags(cmd)
	asked := cmd.Flags().Bool("json", false, "one JSON object")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		rl, err := s.open(cmd.Context(), 0)
		if err != nil {
			return failure(cmd, *asked, args[0], err)
		}
		defer rl.Close()
		status, err := rl.Mutex(args[0]).Inspect(cmd.Context())
		switch {
		case status.Nodes == nil:
			return failure(cmd, *asked, args[0], err)
		case *asked:
			line := asJSON(status)
			if err != nil {
				line.Error = err.Error()
			}
			_ = json.NewEncoder(cmd.OutOrStdout()).Encode(line)
		default:
			printStatus(cmd.OutOrStdout(), status)
		}
		return err
	}
	return cmd
}

func releaseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "release KEY --force",
		Short: "Take a lock from its holder, who is not asked",
		Long: `Take a lock from its holder, who is not asked and may go on as if it had the lock:
for locks whose holder is known to be dead, or that somebody set by hand. Whoever waits
is woken; fencing counters stay.

With --token only that holder loses it, so that the lock is not taken from one who got it
in the meantime.

Exit status: 0 if a majority of nodes confirmed it, 1 if not, 2 for a fault in the command
line.`,
		Example: "  redlock release orders:42 --force --token 6f1c...",
		Args:    oneKey, ValidArgsFunction: cobra.NoFileCompletions,
	}
	s := connectFlags(cmd)
	force := cmd.Flags().Bool("force", false, "yes, without asking the holder (required)")
	token := cmd.Flags().String("token", "", "only if this `token` holds it, as status shows it")
	asked := cmd.Flags().Bool("json", false, "one JSON object")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !*force {
			return &usageError{errors.New("release takes a lock from a holder that may be alive: say --force")}
		}
		rl, err := s.open(cmd.Context(), 0)
		if err != nil {
			return failure(cmd, *asked, args[0], err)
		}
		defer rl.Close()
		if err := rl.Mutex(args[0]).ForceRelease(cmd.Context(), *token); err != nil {
			return failure(cmd, *asked, args[0], err)
		}
		if *asked {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{"key": args[0], "released": true})
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s is released\n", printable(args[0]))
		return nil
	}
	return cmd
}

func watchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "watch KEY",
		Short: "Follow who holds a lock and how many wait",
		Long: `Follow who holds a lock and how many wait: a line each time that changes, until
interrupted. Holders between two looks are missed.

Exit status: 0 when interrupted, 1 if the nodes cannot be reached at the start, 2 for a
fault in the command line.`,
		Example: "  redlock watch orders:42 --interval 200ms",
		Args:    oneKey, ValidArgsFunction: cobra.NoFileCompletions,
	}
	s := connectFlags(cmd)
	asked := cmd.Flags().Bool("json", false, "a JSON object for each line")
	interval := cmd.Flags().Duration("interval", time.Second, "how often to look, from 50ms")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *interval < 50*time.Millisecond {
			return &usageError{fmt.Errorf("--interval is %v: must be at least 50ms", *interval)}
		}
		rl, err := s.open(cmd.Context(), 0)
		if err != nil {
			return failure(cmd, *asked, args[0], err)
		}
		defer rl.Close()
		paint := paletteFor(cmd.OutOrStdout())
		type view struct {
			Token, Failure string
			Waiting        int
		}
		var last *view
		tick := time.NewTicker(*interval)
		defer tick.Stop()
		for {
			status, err := rl.Mutex(args[0]).Inspect(cmd.Context())
			if cmd.Context().Err() != nil {
				return nil
			}
			now := &view{Token: status.Token, Waiting: len(status.Waiters)}
			if err != nil {
				now.Failure = err.Error()
			}
			if last == nil || !reflect.DeepEqual(now, last) {
				at := time.Now()
				switch {
				case *asked:
					line := struct {
						Time time.Time `json:"time"`
						statusJSON
					}{at, asJSON(status)}
					line.Key, line.Error = args[0], now.Failure
					_ = json.NewEncoder(cmd.OutOrStdout()).Encode(line)
				case err != nil:
					fmt.Fprintf(cmd.OutOrStdout(), "%s  %s\n", at.Format(time.TimeOnly), paint.bad(printable(err.Error())))
				default:
					fmt.Fprintf(cmd.OutOrStdout(), "%s  %s, %d waiting\n", at.Format(time.TimeOnly), paint.verdict(status), now.Waiting)
				}
			}
			last = now
			select {
			case <-tick.C:
			case <-cmd.Context().Done():
				return nil
			}
		}
	}
	return cmd
}
