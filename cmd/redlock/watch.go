package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorumlock/redlock/admin"
)

// votesEvery is how often watch asks which nodes may vote, besides when other nodes answer than
// before.
const votesEvery = 5 * time.Second

func silentNames(p picture) (names string) {
	for _, n := range p.silent {
		names += n.Node + "\n"
	}
	return names
}

// barredNote is what watch says of nodes whose grants do not count.
func (p picture) barredNote(now time.Time) string {
	h := p.health
	if len(h.barred) == 0 {
		return ""
	}
	text := "; may not vote" + h.yet() + ": " + h.names()
	if h.lacks() && p.answers() >= p.quorum {
		text = fmt.Sprintf("; no lock can be had%s: %s%s", h.wait(now), h.count(), text)
	}
	return text
}

func watchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "watch [--web] [KEY...]",
		Short: "Follow who holds a lock, or all locks, and how many wait",
		Long: `Follow who holds a lock, how many wait, and which nodes do not answer: a line each time
that changes, until interrupted, also while no majority of nodes answers. Holders between
two looks are missed.

Without a key, or with several, it is a table of all locks that are held or awaited, or of
those that you name. It changes in place on a terminal; elsewhere there is a line for each
change. Locks are found as by 'redlock list'. Tokens are left out.

With --web it is a page for browsers: the same, with how long each waiter has waited, and what
'redlock check' says of the nodes. The page shows and changes nothing.

Exit status: 0 when interrupted, 2 for a fault in the command line, 1 for anything else.`,
		Example:           "  redlock watch\n  redlock watch orders:42 --interval 200ms\n  redlock watch --web",
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	s := connectFlags(cmd)
	asJSONLines := cmd.Flags().Bool("json", false, "a JSON object for each change")
	interval := cmd.Flags().Duration("interval", time.Second, "how often to look, from 50ms")
	page := webFlag(cmd)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if page.asked() {
			return page.misplaced(args, false)
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *interval < 50*time.Millisecond {
			return &usageError{fmt.Errorf("--interval is %v: must be at least 50ms", *interval)}
		}
		if page.asked() {
			return webWatch(cmd, s, args, *interval, page)
		}
		if len(args) != 1 {
			return tableWatch(cmd, s, args, *interval, *asJSONLines)
		}
		nodes, err := s.operate(admin.Options{})
		if err != nil {
			return failure(cmd, *asJSONLines, args[0], err)
		}
		defer nodes.Close()
		out := cmd.OutOrStdout()
		paint := paletteFor(out)
		// view is what makes a line when it changes. Errors do not: they have times and
		// ports in them.
		type view struct {
			token, sharers, maybe, silent, barred string
			waiting                               int
		}
		var last *view
		var h health
		var asked time.Time // for it
		tick := time.NewTicker(*interval)
		defer tick.Stop()
		for {
			status, err := nodes.Inspect(cmd.Context(), args[0])
			if cmd.Context().Err() != nil {
				return nil
			}
			if status.Nodes == nil {
				return failure(cmd, *asJSONLines, args[0], err)
			}
			seen := pictureOf(status, nodes.Quorum())
			if last == nil || last.silent != silentNames(seen) || time.Since(asked) >= votesEvery {
				h, asked = askHealth(cmd.Context(), nodes), time.Now()
				if cmd.Context().Err() != nil {
					return nil
				}
			}
			seen.health = h.at(time.Now())
			now := view{token: status.Token, waiting: len(status.Waiters), silent: silentNames(seen), barred: seen.health.names()}
			for _, h := range status.Holders {
				now.sharers += h.Token + "\n"
			}
			if status.Shared {
				now.token = sharedMarker // also while it is not known by whom
			}
			if seen.maybe != nil {
				now.maybe = seen.maybe.Value
			}
			why := map[bool][]string{}
			for _, n := range seen.silent {
				why[refuses(n)] = append(why[refuses(n)], fmt.Sprintf("%s (%s)", n.Node, inPlain(n.Err)))
			}
			if last == nil || now != *last {
				at := time.Now()
				if *asJSONLines {
					line := struct {
						Time time.Time `json:"time"`
						statusJSON
					}{at, asJSON(seen)}
					if err != nil {
						line.Error = err.Error()
					}
					_ = json.NewEncoder(out).Encode(line)
				} else {
					text := paint.verdict(seen)
					if now.waiting > 0 || err == nil { // else it is not known
						text += fmt.Sprintf(", %d waiting", now.waiting)
					}
					if why[false] != nil {
						text += paint.bad(printable("; no answer from " + strings.Join(why[false], ", ")))
					}
					if why[true] != nil {
						text += paint.bad(printable("; refused by " + strings.Join(why[true], ", ")))
					}
					text += paint.odd(printable(seen.barredNote(at)))
					fmt.Fprint(out, paragraph(out, at.Format(time.TimeOnly)+"  "+text))
				}
			}
			last = &now
			select {
			case <-tick.C:
			case <-cmd.Context().Done():
				return nil
			}
		}
	}
	return cmd
}
