package realredis

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
)

// StartSentinel is [LaunchSentinel] for tests: see [Start].
func StartSentinel(tb testing.TB, master *Server, name string, opts ...Option) *Server {
	tb.Helper()
	Need(tb)
	return manage(tb, func(ctx context.Context) (*Server, error) {
		return LaunchSentinel(ctx, master, name, opts...)
	})
}

// LaunchSentinel starts a sentinel which alone decides about the master, known
// to it as name. It returns when the sentinel has heard from the master,
// including about replicas connected by then. Give its address to
// [redis.NewFailoverClient].
//
// It takes the master for dead after one second; to change that, use
// Args("sentinel", "down-after-milliseconds NAME 300").
func LaunchSentinel(ctx context.Context, master *Server, name string, opts ...Option) (*Server, error) {
	first := func(c *config) {
		c.sentinel = true
		c.tls = master.cfg.tls
		if c.tls {
			c.add("tls-replication", "yes") // for its own connections to the master
		}
		c.add("sentinel", fmt.Sprintf("monitor %s %s %d 1", name, loopback, master.port))
		c.add("sentinel", fmt.Sprintf("down-after-milliseconds %s 1000", name))
		c.add("sentinel", fmt.Sprintf("failover-timeout %s 5000", name))
		if master.cfg.password != "" {
			c.add("sentinel", fmt.Sprintf("auth-pass %s %s", name, quote(master.cfg.password)))
		}
	}
	s, err := Launch(ctx, append([]Option{first}, opts...)...)
	if err != nil {
		return nil, err
	}
	err = s.await(ctx, s.proc.Load(), func(ctx context.Context, c *redis.Client) error {
		cmd := redis.NewMapStringStringCmd(ctx, "sentinel", "master", name)
		if err := c.Process(ctx, cmd); err != nil {
			return err
		}
		m := cmd.Val()
		if m["flags"] != "master" || m["runid"] == "" {
			return fmt.Errorf("sentinel does not see the master: flags %q", m["flags"])
		}
		return nil
	})
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}
