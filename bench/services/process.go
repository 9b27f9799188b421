// Package services runs the servers that hold locks elsewhere, beside Redis: PostgreSQL,
// etcd and ZooKeeper, from what is installed. Each has its data in a temporary folder and
// listens on the loopback interface; on Linux none outlives this process.
package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ErrMissing: the program is not installed.
var ErrMissing = errors.New("not installed")

// Cluster is the servers of one kind. Clients connect to Addrs.
type Cluster struct {
	Version string
	Addrs   []string
	servers []*server
	dir     string
	ready   func(ctx context.Context, addr string) error
	leader  func(ctx context.Context) (int, error)
}

// server is one process that can be killed and started again.
type server struct {
	start  func() *exec.Cmd
	cmd    *exec.Cmd
	ended  chan struct{}
	output *tail
}

func (s *server) run() error {
	s.cmd, s.ended = s.start(), make(chan struct{})
	s.output = &tail{}
	s.cmd.Stdout, s.cmd.Stderr = s.output, s.output
	started := make(chan error)
	go func() {
		// The kernel kills the child when the thread that made it ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := s.cmd.Start()
		started <- err
		if err == nil {
			_ = s.cmd.Wait() // how it ended does not matter
			close(s.ended)
		}
	}()
	return <-started
}

// kill ends it as a failure would, and what it has started with it.
func (s *server) kill() {
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	select {
	case <-s.ended: // its number may be another's by now
	default:
		killGroup(s.cmd.Process.Pid)
		<-s.ended
	}
}

// launch starts all and waits until they answer.
func (c *Cluster) launch(ctx context.Context) error {
	for _, s := range c.servers {
		if err := s.run(); err != nil {
			return err
		}
	}
	for i := range c.servers {
		if err := c.await(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) await(ctx context.Context, i int) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var err error
	for ctx.Err() == nil {
		try, end := context.WithTimeout(ctx, time.Second)
		err = c.ready(try, c.Addrs[min(i, len(c.Addrs)-1)])
		end()
		if err == nil {
			return nil
		}
		select {
		case <-c.servers[i].ended:
			return fmt.Errorf("it ended: %s", c.servers[i].output)
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return fmt.Errorf("not ready: %w: %s", err, c.servers[i].output)
}

// Len is how many servers there are.
func (c *Cluster) Len() int { return len(c.servers) }

// Kill ends a server without warning, the one that leads if one does, and returns it.
func (c *Cluster) Kill(ctx context.Context) (int, error) {
	i := 0
	if c.leader != nil {
		var err error
		if i, err = c.leader(ctx); err != nil {
			return 0, err
		}
	}
	c.servers[i].kill()
	return i, nil
}

// Restart starts a killed server again, with its data, and again if it ends at once, as a
// supervisor would: what the dead one has left may be in its way for a moment. It does not
// wait until the server answers.
func (c *Cluster) Restart(i int) error {
	s := c.servers[i]
	for range 20 {
		if err := s.run(); err != nil {
			return err
		}
		select {
		case <-s.ended:
			time.Sleep(100 * time.Millisecond)
		case <-time.After(200 * time.Millisecond):
			return nil
		}
	}
	return fmt.Errorf("it ends at once: %s", s.output)
}

// Close ends all servers and removes their data.
func (c *Cluster) Close() {
	for _, s := range c.servers {
		s.kill()
	}
	_ = os.RemoveAll(c.dir)
}

// freePorts are n that nobody listens on. Below the range of outgoing connections, so that
// none of these takes one while its server is down.
func freePorts(n int) (ports []string, err error) {
	for try := 0; len(ports) < n && try < 1000; try++ {
		port := strconv.Itoa(21000 + (os.Getpid()*37+try*13)%9000)
		l, lerr := net.Listen("tcp", "127.0.0.1:"+port)
		if lerr != nil {
			err = lerr
			continue
		}
		_ = l.Close()
		ports = append(ports, port)
	}
	if len(ports) < n {
		return nil, fmt.Errorf("no free ports: %w", err)
	}
	return ports, nil
}

// tail keeps the end of what a server wrote.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if len(t.b) > 4000 {
		t.b = append([]byte(nil), t.b[len(t.b)-2000:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.b))
}
