package main

import (
	"context"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

func holderCommand() *cobra.Command {
	return &cobra.Command{
		Use: "holder", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return holdForever(cmd.Context(), newOrders(cmd.InOrStdin(), cmd.OutOrStdout()))
		},
	}
}

// holdForever takes a lock, says so, and keeps it until its input ends or it is killed.
func holdForever(ctx context.Context, o orders) error {
	var job contest
	if err := o.next(&job); err != nil {
		return err
	}
	c, err := openByName(ctx, job.Candidate, job.Target)
	if err != nil {
		return o.answer(outcome{Error: err.Error()})
	}
	try, cancel := context.WithTimeout(ctx, 5*time.Second)
	err = c.worker(job.Key).acquire(try)
	cancel()
	if err != nil {
		return o.answer(outcome{Error: err.Error()})
	}
	if err := o.answer(outcome{}); err != nil {
		return err
	}
	var more bool
	_ = o.next(&more) // the end of its input
	return nil
}

// end kills the child, or stops it so that it exists and does not run. A stopped one ends
// when the child is closed.
func (c *child) end(kill bool) error {
	if kill {
		return c.cmd.Process.Kill()
	}
	c.stopped = true
	return c.cmd.Process.Signal(syscall.SIGSTOP)
}

func (c *child) unstop() {
	if c.stopped {
		_ = c.cmd.Process.Signal(os.Kill)
	}
}
