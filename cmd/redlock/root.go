package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// addrsEnv is what --addrs is when it is not given.
const addrsEnv = "REDLOCK_ADDRS"

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "redlock",
		Short: "Locks held by a majority of independent Redis masters",
		Long: `Locks held by a majority of independent Redis masters.

Start with 'redlock demo': it needs nothing, and shows what the lock does while
nodes die and hang.`,
		Version: version(),
		Args:    noSuchCommand,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },

		SilenceUsage:  true,
		SilenceErrors: true,

		SuggestionsMinimumDistance: 2,
	}
	root.SetFlagErrorFunc(flagError)
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.AddCommand(demoCommand(), runCommand(), statusCommand(), releaseCommand(), watchCommand(), checkCommand(), benchCommand())
	return root
}

// usageError is a fault of the command line, for which the help is of use.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// failure tells those who asked for JSON why there is nothing else, and returns err.
func failure(cmd *cobra.Command, asJSON bool, key string, err error) error {
	if usage := (*usageError)(nil); asJSON && !errors.As(err, &usage) {
		_ = json.NewEncoder(cmd.OutOrStdout()).Encode(struct {
			Key   string `json:"key,omitempty"`
			Error string `json:"error"`
		}{key, err.Error()})
	}
	return err
}

func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	msg := fmt.Sprintf("there is no command %q", args[0])
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		msg += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return &usageError{errors.New(msg)}
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return &usageError{fmt.Errorf("unexpected argument %q: everything is set by flags", args[0])}
}

// flagError says what a flag must be instead of how parsing it failed.
func flagError(_ *cobra.Command, err error) error {
	if bad := (*pflag.InvalidValueError)(nil); errors.As(err, &bad) {
		rule := map[string]string{
			"int":      "a whole number",
			"duration": "a number and a unit, such as 8s or 500ms",
			"bool":     "true or false",
		}[bad.GetFlag().Value.Type()]
		if rule != "" {
			err = fmt.Errorf("--%s is %q: must be %s", bad.GetFlag().Name, bad.GetValue(), rule)
		}
	}
	return &usageError{err}
}

// addrsFlag adds --addrs to the command and returns what to get its value with, or
// that of the environment.
func addrsFlag(cmd *cobra.Command, usage string) func() []string {
	given := cmd.Flags().StringSlice("addrs", nil, usage+" (default: $"+addrsEnv+")")
	return func() []string {
		list := *given
		if !cmd.Flags().Changed("addrs") {
			list = strings.Split(os.Getenv(addrsEnv), ",")
		}
		var addrs []string
		for _, a := range list {
			if a = strings.TrimSpace(a); a != "" {
				addrs = append(addrs, a)
			}
		}
		return addrs
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
