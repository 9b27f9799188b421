package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// childEnv marks a process that this program started from its own binary. It is for
// the tests, whose binary must then act as the program.
const childEnv = "REDLOCK_BENCH_CHILD"

// child is a process of this program with a job of its own. It is told by lines of
// JSON on its standard input, answers with such lines, and ends with its input, so it
// cannot outlive us.
type child struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	cancel context.CancelFunc

	stopped bool // by us, so that it would not notice the end of its input
}

func startChild(ctx context.Context, command string, job any) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, self, command)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = time.Second
	c := &child{cmd: cmd, cancel: cancel}
	if c.in, err = cmd.StdinPipe(); err != nil {
		cancel()
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		cancel()
		return nil, err
	}
	c.out = bufio.NewReaderSize(out, 1<<16)
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, err
	}
	if err := c.tell(job); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *child) tell(v any) error {
	if err := json.NewEncoder(c.in).Encode(v); err != nil {
		return fmt.Errorf("telling a child: %w", err)
	}
	return nil
}

// hear reads the child's next answer, for which it waits no longer than d.
func (c *child) hear(d time.Duration, v any) error {
	timer := time.AfterFunc(d, c.cancel) // ends the process, and so the reading
	defer timer.Stop()
	line, err := c.out.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("no answer of a child: %w", err)
	}
	return json.Unmarshal(line, v)
}

// close ends the child.
func (c *child) close() {
	c.unstop()
	_ = c.in.Close()
	timer := time.AfterFunc(5*time.Second, c.cancel)
	defer timer.Stop()
	_ = c.cmd.Wait()
	c.cancel()
}

// orders is the child's side of the conversation.
type orders struct {
	in  *json.Decoder
	out *json.Encoder
}

func newOrders(in io.Reader, out io.Writer) orders {
	return orders{json.NewDecoder(bufio.NewReader(in)), json.NewEncoder(out)}
}

func (o orders) next(v any) error   { return o.in.Decode(v) }
func (o orders) answer(v any) error { return o.out.Encode(v) }
