// Command redlock shows and operates quorum locks over independent Redis masters.
//
//	redlock demo                          # nothing needs to be installed
//	redlock demo --addrs host1:6379,host2:6379,host3:6379
//	redlock run nightly-report -- ./report.sh
//	redlock status nightly-report
//
// The exit status of all but run, which has its own, is 0 if all went well, 1 if not, and 2 if the command line or a
// setting breaks a rule.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9/logging"

	"github.com/quorumlock/redlock"
)

const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// ignoredAtStart are signals that were ignored when the program was started.
var ignoredAtStart = map[os.Signal]bool{}

func main() {
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGHUP} { // of others Go does not know
		ignoredAtStart[s] = signal.Ignored(s)
	}
	beHelper()
	logging.Disable() // go-redis reports every failed dial, in the midst of our output
	os.Exit(execute(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// execute runs the program and returns its exit status. An interrupt, and what cannot be written, ends ctx; a
// second interrupt ends the program.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	end := []os.Signal{syscall.SIGTERM}
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGHUP} {
		if !ignoredAtStart[s] {
			end = append(end, s)
		}
	}
	ctx, stop := signal.NotifyContext(ctx, end...)
	defer stop()
	context.AfterFunc(ctx, stop)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	root := rootCommand()
	root.SetArgs(args)
	out := &keptOutput{w: stdout, failed: cancel}
	if isTerminal(stdout) { // commands ask it for its width
		root.SetOut(stdout)
	} else {
		root.SetOut(out)
	}
	root.SetErr(stderr)
	strictNames(root) // behind SetOut, which the completion command keeps
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil && out.err != nil {
		err = fmt.Errorf("not all of the output was written: %w", out.err)
	}
	if err == nil {
		return exitOK
	}
	own := (*exitStatus)(nil)
	if errors.As(err, &own) && own.err == nil {
		return own.code
	}
	fmt.Fprint(stderr, paragraph(stderr, "redlock: "+inShell(strings.TrimPrefix(err.Error(), "redlock: "))))
	if isUsage(err) {
		if !errors.Is(err, redlock.ErrDuplicateNode) { // --help knows nothing of it
			fmt.Fprintf(stderr, "See '%s --help'.\n", cmd.CommandPath())
		}
		return exitUsage
	}
	if errors.Is(err, redlock.ErrNoQuorum) {
		fmt.Fprint(stderr, paragraph(stderr, "'redlock check', with the same nodes, says what is wrong with each of them."))
	}
	if own != nil {
		return own.code
	}
	return exitFailed
}

// keptOutput keeps the first error of its writer: a status that a full disk cut off is none.
type keptOutput struct {
	w      io.Writer
	err    error
	failed func()
}

func (o *keptOutput) Write(text []byte) (int, error) {
	n, err := o.w.Write(text)
	if o.err = cmp.Or(o.err, err); err != nil {
		o.failed()
	}
	return n, err
}
