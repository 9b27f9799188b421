package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// config is what a run is to do.
type config struct {
	scenarios  []int
	candidates []string // names; empty: all
	quick      bool
	rounds     int
	window     time.Duration // of one candidate in one round
	hotWindow  time.Duration
	goroutines []int         // of scenario 1
	held       int           // locks of scenario 5
	heldFor    time.Duration // of each of these
	soak       int64         // cycles of scenario 7
	json       string
	cpuProfile string
	memProfile string
}

func (c *config) wants(candidate string) bool {
	return len(c.candidates) == 0 || slices.Contains(c.candidates, candidate)
}

func rootCommand() *cobra.Command {
	var c config
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Compares redlock with its peers on Redis servers of its own",
		Long:  "Compares redlock with its peers on Redis servers of its own.\n\n" + scenarioList(),
		Args:  cobra.NoArgs,

		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			changed := cmd.Flags().Changed
			if c.quick {
				c.shorten(changed)
			}
			if err := c.check(); err != nil {
				return err
			}
			return c.profiled(func() error { return runAll(cmd.Context(), &c, cmd.OutOrStdout(), cmd.ErrOrStderr()) })
		},
	}
	f := cmd.Flags()
	f.IntSliceVar(&c.scenarios, "scenario", []int{1, 2, 3, 4, 5, 6, 7, 8}, "scenarios to run")
	f.StringSliceVar(&c.candidates, "candidate", nil, "candidates to run, all by default: "+strings.Join(allNames(), ", "))
	f.BoolVar(&c.quick, "quick", false, "smoke run: every scenario, but short")
	f.IntVar(&c.rounds, "rounds", 5, "rounds, in each of which every candidate has its turn")
	f.DurationVar(&c.window, "window", 250*time.Millisecond, "how long a candidate's turn lasts")
	f.DurationVar(&c.hotWindow, "hot-window", 1500*time.Millisecond, "how long a candidate's turn on the hot key lasts (scenario 6)")
	f.IntSliceVar(&c.goroutines, "goroutines", []int{1, 4, 16, 64, 128, 256}, "goroutines of scenario 1")
	f.IntVar(&c.held, "held", 10_000, "locks that are held and renewed (scenario 5)")
	f.DurationVar(&c.heldFor, "held-for", 2*lease/3+time.Second, "how long they are held: each is renewed every third of 10s")
	f.Int64Var(&c.soak, "soak", 500_000, "cycles of scenario 7")
	f.StringVar(&c.json, "json", "", "write everything that was measured into this `file`")
	f.StringVar(&c.cpuProfile, "cpuprofile", "", "write a CPU profile of this process into this `file`")
	f.StringVar(&c.memProfile, "memprofile", "", "write an allocation profile of this process into this `file`")
	cmd.AddCommand(scenariosCommand(), primitivesCommand(), contenderCommand(), holderCommand(), linkCommand())
	return cmd
}

// shorten makes a smoke run of it, except for what was asked for.
func (c *config) shorten(changed func(flag string) bool) {
	set := func(flag string, shorten func()) {
		if !changed(flag) {
			shorten()
		}
	}
	set("rounds", func() { c.rounds = 1 })
	set("window", func() { c.window = 60 * time.Millisecond })
	set("hot-window", func() { c.hotWindow = 500 * time.Millisecond })
	set("goroutines", func() { c.goroutines = []int{1, 16} })
	set("held", func() { c.held = 500 })
	set("held-for", func() { c.heldFor = lease/3 + time.Second })
	set("soak", func() { c.soak = 20_000 })
}

func (c *config) check() error {
	var errs []error
	for _, s := range c.scenarios {
		if s < 1 || s > len(scenarios) {
			errs = append(errs, fmt.Errorf("there is no scenario %d", s))
		}
	}
	for _, name := range c.candidates {
		if !slices.Contains(allNames(), name) {
			errs = append(errs, fmt.Errorf("there is no candidate %q; there are %s", name, strings.Join(allNames(), ", ")))
		}
	}
	for _, g := range c.goroutines {
		if g < 1 {
			errs = append(errs, fmt.Errorf("%d goroutines: at least 1", g))
		}
	}
	if c.rounds < 1 || c.window <= 0 || c.hotWindow <= 0 || c.held < 1 || c.heldFor <= 0 || c.soak < 1 {
		errs = append(errs, errors.New("rounds, window, hot-window, held, held-for and soak must be positive"))
	}
	return errors.Join(errs...)
}

func (c *config) profiled(run func() error) error {
	if c.cpuProfile != "" {
		f, err := os.Create(c.cpuProfile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	if c.memProfile != "" {
		runtime.MemProfileRate = 4096
	}
	err := run()
	if c.memProfile != "" {
		f, ferr := os.Create(c.memProfile)
		if ferr != nil {
			return errors.Join(err, ferr)
		}
		defer f.Close()
		err = errors.Join(err, pprof.Lookup("allocs").WriteTo(f, 0))
	}
	return err
}
