// Command mutants proves that a test sees: it breaks the library in each of the ways of
// its list, one at a time, runs the test, and fails unless the test fails every time.
//
//	.ci/mutants -run '^lane-' -in internal/testing/sim -test '-test.run=^TestSimSeeds$ -sim.seeds=20000 -sim.shrink=false'
//
// It is run in the module's root, and changes nothing there: the go command is handed the
// broken file in place of the sound one.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"
)

func main() {
	var (
		names    = flag.String("run", "", "only mutants whose name matches the regular `expression`")
		args     = flag.String("test", "-test.run=^TestSimSeeds$", "`arguments` of the test binary, split at spaces")
		in       = flag.String("in", ".", "the `folder` of the package whose tests run, of mutants that name no other")
		parallel = flag.Int("parallel", 2, "how many mutants at a time")
		limit    = flag.Duration("limit", 10*time.Minute, "how long a test may run")
		quick    = flag.Bool("quick", false, "do not run the sound code first: of no use but to look at mutants one by one")
		scripts  = flag.Bool("scripts", false, "break only scripts, and not the simulation's twins of them: the contract must see that they differ")
		part     = flag.String("part", "0/1", "only every `n`th mutant, beginning with the i-th from 0: i/n")
		outputs  = flag.String("outputs", "", "write what the test printed to files in this `folder`, named after the mutants")
		gen      = flag.String("generate", "", "break these `files`, separated by commas, in all the ways that a program finds, instead of those of the list")
		show     = flag.Bool("list", false, "only list the mutants")
	)
	flag.Parse()
	wanted, err := regexp.Compile(*names)
	first, every, perr := partOf(*part)
	switch {
	case err != nil:
		refuse(err)
	case *parallel < 1:
		refuse(fmt.Errorf("-parallel %d: must be at least 1", *parallel))
	case *limit <= 0:
		refuse(fmt.Errorf("-limit %v: must be more than 0", *limit))
	case perr != nil:
		refuse(perr)
	case flag.NArg() > 0:
		refuse(fmt.Errorf("%q: arguments of the test go into -test", flag.Args()))
	}
	var chosen []mutant
	n, from := 0, list
	if *gen != "" {
		from = nil
		for _, file := range strings.Split(*gen, ",") {
			of, err := generated(".", file)
			if err != nil {
				refuse(err)
			}
			from = append(from, of...)
		}
	}
	for _, m := range from {
		if wanted.MatchString(m.name) && (!*scripts || m.twin != (edit{})) {
			if n%every == first {
				chosen = append(chosen, m)
			}
			n++
		}
	}
	if *show {
		for _, m := range chosen {
			fmt.Printf("%s (%s): %s\n", m.name, m.file, m.why)
			if m.equivalent != "" {
				fmt.Printf("\tequivalent: %s\n", m.equivalent)
			}
			if m.open != "" {
				fmt.Printf("\topen: %s\n", m.open)
			}
		}
		return
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	g := gate{dir: ".", in: *in, args: strings.Fields(*args), limit: *limit, parallel: *parallel, uncontrolled: *quick, named: *names != "", oneSided: *scripts, outputs: *outputs, out: os.Stdout}
	if err := g.run(ctx, chosen); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func partOf(s string) (first, every int, err error) {
	if _, err := fmt.Sscanf(s, "%d/%d", &first, &every); err != nil || first < 0 || first >= every {
		return 0, 0, fmt.Errorf("-part %q: must be i/n with i from 0 and less than n, such as 0/8", s)
	}
	return first, every, nil
}

func refuse(err error) {
	fmt.Fprintln(os.Stderr, "mutants:", err)
	os.Exit(2)
}
