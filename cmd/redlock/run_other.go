//go:build !unix

package main

import (
	"errors"

	"github.com/spf13/cobra"
)

// ignoredAtStart is for run.
var _ = ignoredAtStart

// beHelper is for run.
func beHelper() {}

func runCommand() *cobra.Command {
	return &cobra.Command{
		Use: "run", Short: "Hold a lock while a command runs (on Unix only)",
		DisableFlagParsing: true, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			return &exitStatus{exitRunFailed, errors.New("run needs process groups and signals, which this system does not have")}
		},
	}
}
