// Proof checks what clients were told, and what became of their data, in runs of the real library. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/quorumlock/redlock/internal/testing/history"
	"github.com/quorumlock/redlock/proof/jepsen"
	"github.com/quorumlock/redlock/proof/linear"
)

const usage = `usage: proof COMMAND

  jepsen [-for 60s] [-out DIR] [-plain | -fenced] [-seed N] [-faults LIST] [-old PROGRAM] ...
                                 run clients on real servers that fail, and check everything they were told
  check [-patience 1m] FILE...   say whether the histories in FILE... could have come from a lock

Exit status: 0 if nothing is wrong, 1 for a violation, 2 for what could not be read or decided.
`

func main() {
	jepsen.ClientMain()
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	switch args[0] {
	case "jepsen":
		return runJepsen(args[1:])
	case "check":
		return check(args[1:])
	default:
		fmt.Fprintf(os.Stderr, "proof: no command %q\n\n%s", args[0], usage)
		return 2
	}
}

func runJepsen(args []string) int {
	c := jepsen.Config{Progress: os.Stderr}
	flags := flag.NewFlagSet("jepsen", flag.ContinueOnError)
	flags.DurationVar(&c.For, "for", time.Minute, "how long clients work and things break")
	flags.StringVar(&c.Out, "out", "", "folder for the report (default: a new one in the system's folder for temporary files)")
	flags.BoolVar(&c.Plain, "plain", false, "counters under plain locks only (default: all kinds)")
	flags.BoolVar(&c.Fenced, "fenced", false, "counters in a store that checks fencing tokens only (default: all kinds)")
	flags.BoolVar(&c.Mixed, "mixed", false, "only locks that are held in all ways: alone, shared, by permits, in sets, adopted (default: all kinds)")
	flags.Uint64Var(&c.Seed, "seed", 0, "of the faults; 0 draws one")
	flags.DurationVar(&c.TTL, "ttl", time.Second, "of the leases")
	flags.IntVar(&c.Clients, "clients", 8, "client processes")
	flags.IntVar(&c.Nodes, "nodes", 5, "servers")
	flags.IntVar(&c.Counters, "counters", 3, "counters of each kind at a time")
	faults := flags.String("faults", strings.Join(jepsen.AllFaults, ","), "what may happen; empty: nothing")
	flags.StringVar(&c.Old, "old", "", "this program as an older version built it: clients of that version are replaced by ours one after another, and back")
	flags.StringVar(&c.Sabotage, "sabotage", "", "break clients or the store on purpose, to see that it is found: nolock, nocompare, overstay, nofence or noguard")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "proof: jepsen takes no arguments, and got %q\n", flags.Args())
		return 2
	}
	if *faults != "" {
		c.Faults = strings.Split(*faults, ",")
	}
	if !c.Plain && !c.Fenced && !c.Mixed {
		c.Plain, c.Fenced, c.Mixed = true, true, true
	}
	if info, err := os.Stderr.Stat(); err == nil {
		c.Terminal = info.Mode()&os.ModeCharDevice != 0
	}
	if c.Out == "" {
		dir, err := os.MkdirTemp("", "jepsen-")
		if err != nil {
			fmt.Fprintln(os.Stderr, "proof:", err)
			return 2
		}
		c.Out = dir
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	report, err := jepsen.Run(ctx, c)
	if err != nil {
		fmt.Fprintln(os.Stderr, "proof:", err)
		return 2
	}
	text, err := report.Text()
	if err != nil {
		fmt.Fprintln(os.Stderr, "proof:", err)
		return 2
	}
	fmt.Print(text)
	fmt.Printf("\n%s\n", c.Out)
	if !report.OK {
		return 1
	}
	return 0
}

func check(args []string) int {
	flags := flag.NewFlagSet("check", flag.ContinueOnError)
	patience := flags.Duration("patience", time.Minute, "how long to look for an order of the calls of one key")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "proof: check needs at least one file")
		return 2
	}
	var ops []history.Op
	for _, name := range flags.Args() {
		part, err := readHistory(name)
		if err != nil {
			fmt.Fprintln(os.Stderr, "proof:", err)
			return 2
		}
		ops = append(ops, part...)
	}
	err := linear.Check(ops, *patience)
	var v *linear.Violation
	switch {
	case err == nil:
		fmt.Printf("OK: %d operations\n", len(ops))
		return 0
	case errors.As(err, &v):
		fmt.Println("violation:", err)
		return 1
	default:
		fmt.Fprintln(os.Stderr, "proof:", err)
		return 2
	}
}

func readHistory(name string) ([]history.Op, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	ops, err := history.Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return ops, nil
}
