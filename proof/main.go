// Proof checks what clients were told, and what became of their data, in runs of the real library. See README.md.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/quorumlock/redlock/internal/history"
	"github.com/quorumlock/redlock/proof/linear"
)

const usage = `usage: proof COMMAND

  check [-patience 1m] FILE...   say whether the histories in FILE... could have come from a lock

Exit status: 0 if nothing is wrong, 1 for a violation, 2 for what could not be read or decided.
`

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	switch args[0] {
	case "check":
		return check(args[1:])
	default:
		fmt.Fprintf(os.Stderr, "proof: no command %q\n\n%s", args[0], usage)
		return 2
	}
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
