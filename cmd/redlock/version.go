package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Which version this is, and what it was built of",
		Args:  noArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "redlock %s%s, %s, %s/%s\n", version(), commit(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

// version is the module's version, as far as the build knows it.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}

// commit is where a build from a clone was made, behind a version that does not say it.
func commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return " (" + cut(s.Value, 15) + ")"
		}
	}
	return ""
}

func manCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "man DIR",
		Short: "Write manual pages, one for each command",
		Long: `Write manual pages into a directory, which is made if it is not there: redlock.1, and one
for each command.

Exit status: 0 if they were written, 1 if not, 2 for a fault in the command line.`,
		Example: `  redlock man ~/.local/share/man/man1 && man redlock-run`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &usageError{fmt.Errorf("%s takes one directory, not %d arguments", cmd.CommandPath(), len(args))}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			cmd.Root().DisableAutoGenTag = true // the same pages for the same version
			return doc.GenManTree(cmd.Root(), &doc.GenManHeader{Section: "1", Source: "redlock " + version(), Manual: "redlock"}, args[0])
		},
	}
}
