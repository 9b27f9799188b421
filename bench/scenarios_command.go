package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	failures "github.com/quorumlock/redlock/bench/scenarios"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/spf13/cobra"
)

func scenariosCommand() *cobra.Command {
	var file string
	var names []string
	cmd := &cobra.Command{
		Use:   "scenarios [all | number...]",
		Short: "Plays failures of docs/safety-tests.md to redlock, redsync and rueidislock, and prints what each does",
		Long: "Plays failures to redlock, redsync and rueidislock, and prints what each does. The numbers are those\n" +
			"of docs/safety-tests.md; without any, the scenarios are listed. Each takes up to ten seconds per library.",
		Args: func(_ *cobra.Command, args []string) error { _, err := numbersOf(args); return err },
		RunE: func(cmd *cobra.Command, args []string) error {
			out := cmd.OutOrStdout()
			if len(args) == 0 {
				failures.List(out)
				return nil
			}
			numbers, err := numbersOf(args)
			if err != nil {
				return err
			}
			found, err := failures.Find(numbers)
			if err != nil {
				return err
			}
			for _, name := range names {
				if !slices.Contains(failures.Libraries(), name) {
					return fmt.Errorf("there is no library %q; there are %s", name, strings.Join(failures.Libraries(), ", "))
				}
			}
			return playAll(cmd, found, names, file, out)
		},
	}
	cmd.Flags().StringVar(&file, "json", "", "write what was measured into this `file`, too; - for standard output instead of tables")
	cmd.Flags().StringSliceVar(&names, "library", nil, "libraries to play to, all by default: "+strings.Join(failures.Libraries(), ", "))
	return cmd
}

// numbersOf reads the arguments; "all" is no number.
func numbersOf(args []string) (numbers []int, err error) {
	if len(args) == 1 && args[0] == "all" {
		return nil, nil
	}
	for _, a := range args {
		n, err := strconv.Atoi(a)
		if err != nil {
			return nil, fmt.Errorf("%q is no number of a scenario, and not the word all alone", a)
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}

func playAll(cmd *cobra.Command, found []failures.Scenario, names []string, file string, out io.Writer) error {
	ctx := cmd.Context()
	version, err := redisVersion(cmd)
	if err != nil {
		return err
	}
	r := failures.Report{
		Go: runtime.Version(), OS: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.NumCPU(), Redis: version,
		Modules: moduleVersions(),
	}
	tables := out
	if file == "-" {
		tables = io.Discard
	}
	fmt.Fprintf(tables, "%s, %s, %d CPUs shared with the servers, Redis %s\n", r.Go, r.OS, r.CPUs, r.Redis)
	unfinished := 0
	for _, s := range found {
		results := s.Play(ctx, names...)
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := failures.Print(tables, results); err != nil {
			return err
		}
		for _, x := range results {
			if x.Error != "" {
				unfinished++
			}
		}
		r.Results = append(r.Results, results...)
	}
	switch file {
	case "":
	case "-":
		err = r.JSON(out)
	default:
		err = writeReport(&r, file)
	}
	if unfinished > 0 {
		err = errors.Join(err, fmt.Errorf("%d were not played to their end", unfinished))
	}
	return err
}

func redisVersion(cmd *cobra.Command) (string, error) {
	s, err := realredis.Launch(cmd.Context())
	if err != nil {
		return "", err
	}
	defer s.Close()
	return serverVersion(cmd.Context(), s.Addr())
}

func writeReport(r *failures.Report, file string) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return r.JSON(f)
}
