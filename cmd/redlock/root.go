package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/quorumlock/redlock"
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
	root.AddCommand(demoCommand(), runCommand(), statusCommand(), listCommand(), releaseCommand(), watchCommand(), checkCommand(), benchCommand(), versionCommand(), manCommand())
	fitHelp(root)
	return root
}

// usageError is a fault of the command line, for which the help is of use.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// isUsage tells what the user can mend by another command line or setting.
func isUsage(err error) bool {
	return errors.As(err, new(*usageError)) || errors.Is(err, redlock.ErrInvalid) || errors.Is(err, redlock.ErrDuplicateNode)
}

// inShell names flags where the library's hints name Go.
func inShell(text string) string { return flagsForGo.Replace(text) }

var flagsForGo = strings.NewReplacer(
	"name the authority in Options.TLS or SSL_CERT_FILE", "name the authority with --tls-ca or SSL_CERT_FILE",
	"give it a certificate in Options.TLS", "give it one with --tls-cert and --tls-key",
	"give it one in Options.TLS", "give it one with --tls-cert and --tls-key",
)

// inPlain says of each way not to get an answer the same, as the library does.
func inPlain(err error) string {
	if late := net.Error(nil); errors.As(err, &late) && late.Timeout() {
		return "no answer in time"
	}
	return inShell(err.Error())
}

// failure tells those who asked for JSON why there is nothing else, and returns err.
func failure(cmd *cobra.Command, asJSON bool, key string, err error) error {
	if asJSON && !isUsage(err) {
		_ = json.NewEncoder(cmd.OutOrStdout()).Encode(struct {
			Key   string `json:"key,omitempty"`
			Error string `json:"error"`
		}{key, inShell(err.Error())})
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

// strictNames makes wrong names behind help and completion errors, which cobra answers with its
// help.
func strictNames(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Args = func(_ *cobra.Command, args []string) error {
				if found, _, err := root.Find(args); err == nil && found != root {
					return nil
				}
				return noSuchCommand(root, args)
			}
		case "completion":
			c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
			c.Args = func(cmd *cobra.Command, args []string) error {
				if len(args) == 0 {
					return nil
				}
				var shells []string
				for _, s := range cmd.Commands() {
					shells = append(shells, s.Name())
				}
				return &usageError{fmt.Errorf("there is no completion for %q: must be one of %s", args[0], strings.Join(shells, ", "))}
			}
		}
	}
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return &usageError{fmt.Errorf("unexpected argument %q: everything is set by flags", args[0])}
}

// flagError says what a flag must be instead of how parsing it failed.
func flagError(cmd *cobra.Command, err error) error {
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
	if none := (*pflag.NotExistError)(nil); errors.As(err, &none) {
		if near := nearestFlag(cmd, none.GetSpecifiedName()); near != "" {
			err = fmt.Errorf("%w; did you mean --%s?", err, near)
		}
		if cmd.Name() == "run" {
			err = fmt.Errorf("%w; what belongs to the command goes behind --: redlock run KEY... -- COMMAND", err)
		}
	}
	return &usageError{err}
}

// nearestFlag is the flag that was meant, or empty if that is anybody's guess.
func nearestFlag(cmd *cobra.Command, typed string) (near string) {
	if len(typed) < 2 {
		return ""
	}
	least := max(2, len(typed)/3) + 1
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		d := distance(typed, f.Name)
		if strings.HasPrefix(f.Name, typed) || strings.HasPrefix(typed, f.Name) {
			d = min(d, 1)
		}
		if d < least {
			near, least = f.Name, d
		}
	})
	return near
}

// distance is how many letters to insert, delete or replace to get from a to b (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := before
			if a[i] != b[j] {
				cost++
			}
			before = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// addrsFlag adds --addrs to the command and returns what to get its value with, or
// that of the environment.
func addrsFlag(cmd *cobra.Command, usage string) func() []string {
	given := cmd.Flags().StringSlice("addrs", nil, usage+" (default: $"+addrsEnv+")")
	return func() []string {
		if !cmd.Flags().Changed("addrs") {
			return cleanAddrs(strings.Split(os.Getenv(addrsEnv), ","))
		}
		return cleanAddrs(*given)
	}
}

// cleanAddrs leaves out empty ones, and adds the port to a host that has none.
func cleanAddrs(list []string) (addrs []string) {
	for _, a := range list {
		if a = strings.TrimSpace(a); a != "" {
			addrs = append(addrs, withPort(a))
		}
	}
	return addrs
}

const redisPort = "6379"

// withPort leaves what is no bare host to those who read addresses. URLs have a port anyway.
func withPort(addr string) string {
	if strings.ContainsAny(addr, "/@ ") {
		return addr
	}
	if _, _, err := net.SplitHostPort(addr); err == nil {
		return addr
	}
	if host := strings.Trim(addr, "[]"); !strings.Contains(host, ":") || net.ParseIP(host) != nil {
		return net.JoinHostPort(host, redisPort)
	}
	return addr
}
