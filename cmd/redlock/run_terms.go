//go:build unix

package main

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/lockset"
)

// mostPermits is the library's bound.
const mostPermits = 1024

// adoptVariable has the token for --adopt: every user of the machine can read arguments.
const adoptVariable = "REDLOCK_ADOPT"

var isToken = regexp.MustCompile(`^[0-9a-f]{32}$`)

var errRunArgs = &usageError{errors.New("run takes one key, and with a command any number of keys, --, then the command: redlock run KEY... -- COMMAND")}

// runArgs wants a -- where there is more than one argument: one that was forgotten must not
// make a command's name a lock.
func runArgs(cmd *cobra.Command, args []string) error {
	keys, command := splitArgs(cmd, args)
	switch {
	case len(keys) == 0:
		return errRunArgs
	case len(command) == 0 && len(keys) > 1 && cmd.ArgsLenAtDash() < 0:
		return &usageError{fmt.Errorf("%w; did you mean: redlock run %s -- %s", errRunArgs, quoted(keys[:1]), quoted(keys[1:]))}
	case len(command) == 0 && cmd.ArgsLenAtDash() >= 0:
		return errRunArgs
	}
	for i, k := range keys {
		if len(command) > 0 && strings.Contains(k, "\n") {
			return &usageError{fmt.Errorf("the key %q has a line break: the command finds each key on a line of $REDLOCK_KEY", k)}
		}
		if slices.Contains(keys[:i], k) {
			return &usageError{fmt.Errorf("the key %q is there twice: keys must differ", k)}
		}
	}
	return nil
}

// quoted is words as a shell takes them.
func quoted(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		if out[i] = w; w == "" || strings.ContainsFunc(w, func(r rune) bool {
			return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_./:=,+@%", r)
		}) {
			out[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(out, " ")
}

func splitArgs(cmd *cobra.Command, args []string) (keys, command []string) {
	if dash := cmd.ArgsLenAtDash(); dash >= 0 {
		return args[:dash], args[dash:]
	}
	return args, nil
}

// brokenRule is what is wrong with the flags, for this many keys.
func (f *runFlags) brokenRule(cmd *cobra.Command, keys int, command bool) error {
	semaphore, keeps, min := cmd.Flags().Changed("permits"), cmd.Flags().Changed("keep"), cmd.Flags().Changed("min-hold")
	for _, rule := range []struct {
		broken bool
		text   string
	}{
		{f.nonblock && f.wait != 0, "--nonblock and --timeout exclude each other"},
		{f.wait < 0, fmt.Sprintf("--timeout is %v: must not be negative", f.wait)},
		{f.release < 0, fmt.Sprintf("--release-timeout is %v: must not be negative", f.release)},
		{keeps && cmd.Flags().Changed("ttl"), "--keep is the lease, and --ttl would be another"},
		{keeps && (f.keep < time.Second || f.keep > 24*time.Hour), fmt.Sprintf("--keep is %v: must be from 1s to 24h", f.keep)},
		{f.keep > 0 && !command, "--keep is for what comes after a command, and there is none"},
		{f.ttl < time.Second || f.ttl > 24*time.Hour, fmt.Sprintf("--ttl is %v: must be from 1s to 24h", f.ttl)},
		{f.busy < 0 || f.busy > 255, fmt.Sprintf("-E is %d: must be from 0 to 255", f.busy)},
		{semaphore && (f.permits < 1 || f.permits > mostPermits), fmt.Sprintf("--permits is %d: must be from 1 to %d", f.permits, mostPermits)},
		{f.shared && semaphore, "--shared and --permits exclude each other"},
		{f.shared && f.fencing, "--shared and --fencing exclude each other: those who share a lock have no order"},
		{semaphore && f.fencing, "--permits and --fencing exclude each other: those who share a lock have no order"},
		{min && (f.minHold < time.Second || f.minHold > 24*time.Hour), fmt.Sprintf("--min-hold is %v: must be from 1s to 24h", f.minHold)},
		{min && !command, "--min-hold is for what comes after a command, and there is none"},
		{min && keeps, "--min-hold and --keep exclude each other"},
		{min && (f.shared || semaphore), "--min-hold is for exclusive locks, not with --shared or --permits"},
		{f.adopt && (f.shared || semaphore), "--adopt is for exclusive locks, not with --shared or --permits"},
		{f.adopt && (f.nonblock || f.wait != 0), "--adopt waits for nobody, so --nonblock and --timeout have no meaning"},
		{len(f.owner) > mostOfOwner, fmt.Sprintf("--owner is %d bytes long: must be at most %d", len(f.owner), mostOfOwner)},
		{f.adopt && keys > 1, fmt.Sprintf("--adopt takes one key, not %d", keys)},
		{f.shared && keys > 1, fmt.Sprintf("--shared takes one key, not %d", keys)},
		{semaphore && keys > 1, fmt.Sprintf("--permits takes one key, not %d", keys)},
	} {
		if rule.broken {
			return &usageError{errors.New(rule.text)}
		}
	}
	return nil
}

// lockOptions are those of each lock.
func (f *runFlags) lockOptions() []redlock.LockOption {
	opts := []redlock.LockOption{redlock.WithRenewal()}
	if f.fencing {
		opts = append(opts, redlock.WithFencing())
	}
	if f.minHold > 0 {
		opts = append(opts, redlock.WithMinHold(f.minHold))
	}
	return opts
}

// wanted is what run acquires: one lock, or several together.
func wanted(rl *redlock.Redlock, f runFlags, keys []string) *lockset.Set {
	var members []lockset.Member
	for _, k := range keys {
		switch {
		case f.permits > 0:
			members = append(members, rl.Semaphore(k, f.permits, f.lockOptions()...))
		case f.shared:
			members = append(members, rl.Mutex(k, f.lockOptions()...).Shared())
		default:
			members = append(members, rl.Mutex(k, f.lockOptions()...))
		}
	}
	return lockset.New(members...)
}

// mostOfOwner leaves room for host:pid within what the library takes.
const mostOfOwner = 100

// label is what others see of this run. It ends up in tables and error texts, so it has the name of the
// command and none of its arguments, which may be secrets. The process makes it unique.
func (f *runFlags) label(command []string) string {
	if f.owner != "" {
		return f.owner + " " + ownName()
	}
	label := ownName()
	if u, err := user.Current(); err == nil && u.Username != "" {
		label = u.Username + "@" + label
	}
	if len(command) > 0 {
		label += " " + filepath.Base(command[0])
	}
	return strings.ToValidUTF8(label[:min(len(label), 250)], "")
}

// environment is that of the command. It tells of its locks, of several a line each in the order of the
// command line, and nothing of one that redlock itself is run under.
func environment(held lockset.Locks, f runFlags) []string {
	of := func(what func(*redlock.Lock) string) string {
		var lines []string
		for _, l := range held {
			lines = append(lines, what(l))
		}
		return strings.Join(lines, "\n")
	}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains([]string{"REDLOCK_KEY", "REDLOCK_TOKEN", "REDLOCK_FENCE", "REDLOCK_PERMIT"}, name)
	})
	env = append(env, "REDLOCK_KEY="+of((*redlock.Lock).Key), "REDLOCK_TOKEN="+of((*redlock.Lock).Token))
	if f.fencing {
		env = append(env, "REDLOCK_FENCE="+of(func(l *redlock.Lock) string { return strconv.FormatUint(l.Fence(), 10) }))
	}
	if f.permits > 0 {
		env = append(env, "REDLOCK_PERMIT="+strconv.Itoa(held[0].Permit()))
	}
	return env
}
