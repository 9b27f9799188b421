package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/quorumlock/redlock"
)

// takenJSON is what release --json prints.
type takenJSON struct {
	Key      string          `json:"key"`
	Released bool            `json:"released"`
	Nodes    []takenNodeJSON `json:"nodes,omitempty"` // where it was not released
	Error    string          `json:"error,omitempty"`
}

type takenNodeJSON struct {
	Node string `json:"node"`
	// Key is "deleted", "none", "kept" or "unknown".
	Key    string `json:"key"`
	Holder string `json:"holder,omitempty"`
	Error  string `json:"error,omitempty"`
}

// notTaken is a forced release that failed, node by node.
type notTaken struct {
	*redlock.QuorumError
	nodes      []takenNodeJSON
	gone, kept int
}

func notTakenOf(q *redlock.QuorumError) notTaken {
	t := notTaken{QuorumError: q}
	for _, o := range q.Outcomes {
		n := takenNodeJSON{Node: o.Node, Key: "unknown", Holder: o.Holder}
		switch {
		case o.Vote == redlock.VoteGranted:
			n.Key = "deleted"
			t.gone++
		case o.Vote == redlock.VoteRefused && o.Holder == "" && o.Err == nil:
			n.Key = "none"
			t.gone++
		case o.Vote == redlock.VoteRefused:
			n.Key = "kept"
			t.kept++
		}
		if o.Err != nil {
			n.Error = o.Err.Error()
		}
		t.nodes = append(t.nodes, n)
	}
	return t
}

// short is the error for those who see the nodes beside it.
func (t notTaken) short() error {
	switch {
	case errors.Is(t, redlock.ErrNotHeld) && t.kept > 0:
		return errors.New("not released: it is there under another token than the one given")
	case errors.Is(t, redlock.ErrNotHeld):
		return errors.New("nothing to release: a majority of nodes has no such key")
	default:
		return fmt.Errorf("not released: no quorum, the key is gone from %d of %d nodes, %d needed", t.gone, len(t.nodes), t.Need)
	}
}

func (t notTaken) print(w io.Writer) {
	paint := paletteFor(w)
	fmt.Fprintln(w, paint.bad(printable(t.Key+": "+t.short().Error())))
	nodes := table{heading: []string{"NODE", "HOLDER", "KEY"}, bad: func(i int) bool { return t.nodes[i].Key == "unknown" }}
	for _, n := range t.nodes {
		nodes.rows = append(nodes.rows, []string{n.Node, cmp.Or(shortHolder(n.Holder), "-"), n.Key})
	}
	nodes.print(w, paint)
	for _, n := range t.nodes {
		if n.Error != "" {
			fmt.Fprint(w, paint.bad(paragraph(w, printable(n.Node+": "+n.Error))))
		}
	}
	switch {
	case !errors.Is(t, redlock.ErrNotHeld):
		fmt.Fprint(w, paragraph(w, "Where it is not known, the key may be there yet, and the holder may extend it when those nodes are back. "+
			"Bring them back ('redlock check' says what is wrong with each) and release again, or wait for the lease to end."))
	case t.kept > 0:
		fmt.Fprintln(w, "'redlock status' shows the whole token of the holder.")
	}
}

func releaseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "release KEY --force",
		Short: "Take a lock away from its holder",
		Long: `Take a lock away from its holder, which is not asked and may go on as if it had the lock:
for locks whose holder is known to be dead, or that were set by hand. Waiters are woken;
fencing counters stay.

With --token only that holder loses it, so that the lock is not taken from another that got
it in the meantime.

If no majority of nodes answers, it is deleted on those that do, and each is listed with
what became of it there.

Exit status: 0 if a majority of nodes confirmed it; 1 if not, also if it was not held; 2 for
a fault in the command line.`,
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
		named := cmd.Flags().Changed("token")
		if named && *token == "" { // a script's variable that is not set
			return &usageError{errors.New("--token is empty: it must be the holder's; leave it out to take the lock from any holder")}
		}
		rl, disconnect, err := s.operate(cmd.Context(), redlock.Options{NodeTimeout: operatorPatience})
		if err != nil {
			return failure(cmd, *asked, args[0], err)
		}
		defer disconnect()
		if m := rl.Mutex(args[0]); named {
			err = m.ForceRelease(cmd.Context(), *token)
		} else {
			err = m.ForceReleaseAll(cmd.Context())
		}
		q := (*redlock.QuorumError)(nil)
		switch {
		case err == nil:
		case cmd.Context().Err() != nil || !errors.As(err, &q) || len(q.Outcomes) == 0:
			return failure(cmd, *asked, args[0], err)
		default:
			t := notTakenOf(q)
			if *asked {
				_ = json.NewEncoder(cmd.OutOrStdout()).Encode(takenJSON{Key: args[0], Nodes: t.nodes, Error: err.Error()})
			} else {
				t.print(cmd.OutOrStdout())
			}
			return t.short()
		}
		if *asked {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(takenJSON{Key: args[0], Released: true})
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s is released\n", printable(args[0]))
		return nil
	}
	return cmd
}
