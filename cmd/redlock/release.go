package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/quorumlock/redlock/admin"
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
	admin.Taken
	err        error
	gone, kept int
}

func notTakenOf(taken admin.Taken, err error) notTaken {
	t := notTaken{Taken: taken, err: err}
	for _, n := range taken.Nodes {
		switch n.Left {
		case admin.Deleted, admin.Nothing:
			t.gone++
		case admin.Kept:
			t.kept++
		}
	}
	return t
}

func (t notTaken) json() (all []takenNodeJSON) {
	for _, n := range t.Nodes {
		j := takenNodeJSON{Node: n.Node, Key: string(n.Left), Holder: n.Holder}
		if n.Err != nil {
			j.Error = n.Err.Error()
		}
		all = append(all, j)
	}
	return all
}

// short is the error for those who see the nodes beside it.
func (t notTaken) short() error {
	switch {
	case errors.Is(t.err, admin.ErrNotHeld) && t.kept > 0:
		return errors.New("not released: it is there under another token than the one given")
	case errors.Is(t.err, admin.ErrNotHeld):
		return errors.New("nothing to release: a majority of nodes has no such key")
	default:
		return fmt.Errorf("not released: no quorum, the key is gone from %d of %d nodes, %d needed", t.gone, len(t.Nodes), len(t.Nodes)/2+1)
	}
}

func (t notTaken) print(w io.Writer) {
	paint := paletteFor(w)
	fmt.Fprintln(w, paint.bad(printable(t.Key+": "+t.short().Error())))
	nodes := table{heading: []string{"NODE", "HOLDER", "KEY"}, bad: func(i int) bool { return t.Nodes[i].Left == admin.Unknown }}
	for _, n := range t.Nodes {
		none := "-"
		if n.Left == admin.Unknown {
			none = "?"
		}
		nodes.rows = append(nodes.rows, []string{n.Node, cmp.Or(shortHolder(n.Holder), none), string(n.Left)})
	}
	nodes.print(w, paint)
	for _, n := range t.Nodes {
		if n.Err != nil {
			fmt.Fprint(w, paint.bad(paragraph(w, printable(n.Node+": "+n.Err.Error()))))
		}
	}
	switch {
	case !errors.Is(t.err, admin.ErrNotHeld):
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
		nodes, err := s.operate(admin.Options{})
		if err != nil {
			return failure(cmd, *asked, args[0], err)
		}
		defer nodes.Close()
		from := admin.Anything()
		if named {
			from = admin.HeldBy(*token)
		}
		taken, err := nodes.ForceRelease(cmd.Context(), args[0], from)
		switch {
		case err == nil:
		case cmd.Context().Err() != nil || taken.Nodes == nil:
			return failure(cmd, *asked, args[0], err)
		default:
			t := notTakenOf(taken, err)
			if *asked {
				_ = json.NewEncoder(cmd.OutOrStdout()).Encode(takenJSON{Key: args[0], Nodes: t.json(), Error: err.Error()})
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
