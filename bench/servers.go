package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/redis/go-redis/v9"
)

func closeServers(servers []*realredis.Server) {
	for _, s := range servers {
		_ = s.Close()
	}
}

func addrsOf(servers []*realredis.Server) []string {
	addrs := make([]string, len(servers))
	for i, s := range servers {
		addrs[i] = s.Addr()
	}
	return addrs
}

// once runs a few commands on a connection of its own.
func once[T any](ctx context.Context, addr string, f func(context.Context, *redis.Client) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	defer c.Close()
	return f(ctx, c)
}

func serverVersion(ctx context.Context, addr string) (string, error) {
	return once(ctx, addr, func(ctx context.Context, c *redis.Client) (string, error) {
		info, err := c.Info(ctx, "server").Result()
		return infoField(info, "redis_version"), err
	})
}

// valkeyVersion is empty for Redis.
func valkeyVersion(ctx context.Context, addr string) (string, error) {
	return once(ctx, addr, func(ctx context.Context, c *redis.Client) (string, error) {
		info, err := c.Info(ctx, "server").Result()
		return infoField(info, "valkey_version"), err
	})
}

func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// traffic is what servers have done so far.
type traffic struct {
	Commands int64 // executed, those inside scripts included
	Reads    int64 // from sockets: about one for each batch that came
	Bytes    int64 // received
}

func (t traffic) minus(u traffic) traffic {
	return traffic{t.Commands - u.Commands, t.Reads - u.Reads, t.Bytes - u.Bytes}
}

func trafficOf(ctx context.Context, servers []*realredis.Server) (sum traffic, err error) {
	for _, s := range servers {
		info, err := once(ctx, s.Addr(), func(ctx context.Context, c *redis.Client) (string, error) {
			return c.Info(ctx, "stats").Result()
		})
		if err != nil {
			return sum, err
		}
		for name, to := range map[string]*int64{
			"total_commands_processed": &sum.Commands,
			"total_reads_processed":    &sum.Reads,
			"total_net_input_bytes":    &sum.Bytes,
		} {
			n, err := strconv.ParseInt(infoField(info, name), 10, 64)
			if err != nil {
				return sum, fmt.Errorf("INFO of %s: %s: %w", s.Addr(), name, err)
			}
			*to += n
		}
	}
	return sum, nil
}

// cpuOf sums what the servers have used. Servers that are down count too.
func cpuOf(servers []*realredis.Server) (sum time.Duration, err error) {
	for _, s := range servers {
		d, cerr := s.CPU()
		err = errors.Join(err, cerr)
		sum += d
	}
	return sum, err
}

// awaitAll waits until every server answers again.
func awaitAll(ctx context.Context, servers []*realredis.Server) error {
	for _, s := range servers {
		if _, err := serverVersion(ctx, s.Addr()); err != nil {
			return err
		}
	}
	return nil
}

// flush empties servers, which are then a fleet that was never used.
func flush(ctx context.Context, servers []*realredis.Server) error {
	for _, s := range servers {
		if _, err := once(ctx, s.Addr(), func(ctx context.Context, c *redis.Client) (string, error) { return c.FlushAll(ctx).Result() }); err != nil {
			return err
		}
	}
	return nil
}
