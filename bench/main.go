// Command bench compares redlock with other Redis locks of the Go world, on Redis
// servers that it starts itself, all in one run. See README.md.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"

	"github.com/redis/go-redis/v9/logging"
)

func main() { os.Exit(execute(os.Args[1:])) }

// execute runs the program and returns its exit status.
func execute(args []string) int {
	logging.Disable() // go-redis reports every failed dial, and we make many fail
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	cmd := rootCommand()
	cmd.SetArgs(twoDashes(args))
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

// twoDashes lets flags be written with one dash too, as those of Go's own tools. None has
// a short form, except for -h.
func twoDashes(args []string) []string {
	args = slices.Clone(args)
	for i, a := range args {
		if a == "--" {
			break
		}
		if len(a) > 2 && a[0] == '-' && a[1] >= 'a' && a[1] <= 'z' {
			args[i] = "-" + a
		}
	}
	return args
}
