package main

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/protocol"
)

// What one look asks of a node at most, so that watching is no load.
const (
	scanCount = 1000 // keys in one step
	scanSteps = 2    // in one look; the next look goes on from there
	getMost   = 64   // bytes of a value: what is longer is no lock, or is known by its beginning
)

// finder finds locks on the nodes by what keys are called and have in them, since nobody
// keeps a list of locks. It asks with SCAN and GETRANGE, and changes nothing.
type finder struct {
	prefix string
	nodes  []*nodeFinder
}

type nodeFinder struct {
	client *redis.Client
	cursor uint64
	once   bool // it has been through all keys

	mark       string // the node's memory mark, as it was last read
	marked     bool   // it was read
	markDenied bool   // it may not be read

	// Of the latest look.
	err     error
	elapsed time.Duration
	// remarked: the mark is another one than before, so data may have been lost.
	remarked bool
	keys     []string // of locks that are held or awaited
	fences   map[string]uint64
}

// newFinder connects to the nodes. The caller closes it.
func newFinder(addrs []string, c config) (*finder, error) {
	clients, _, err := clientsOf(addrs, c)
	if err != nil {
		return nil, err
	}
	f := &finder{prefix: c.KeyPrefix}
	for _, c := range clients {
		f.nodes = append(f.nodes, &nodeFinder{client: c})
	}
	return f, nil
}

func (f *finder) close() {
	for _, n := range f.nodes {
		_ = n.client.Close()
	}
}

// look asks all nodes at once: for more locks, whose keys it returns without the prefix, and
// for the fencing counters of those that are shown.
func (f *finder) look(ctx context.Context, shown []string) (keys []string) {
	ctx, cancel := context.WithTimeout(ctx, operatorPatience)
	defer cancel()
	var all sync.WaitGroup
	for _, n := range f.nodes {
		all.Go(func() {
			begun := time.Now()
			n.keys = nil
			n.remarked = false
			n.err = n.client.Ping(ctx).Err()
			n.elapsed = time.Since(begun)
			if n.err == nil {
				n.readMark(ctx, f.prefix)
				n.err = n.scan(ctx, f.prefix)
			}
			if n.err == nil {
				n.err = n.count(ctx, f.prefix, shown)
			}
		})
	}
	all.Wait()
	for _, n := range f.nodes {
		keys = append(keys, n.keys...)
	}
	return keys
}

// readMark looks whether the node's memory mark is still the same. Where that is denied there
// is one attempt only, since each is an entry in the server's log.
func (n *nodeFinder) readMark(ctx context.Context, prefix string) {
	if n.markDenied {
		return
	}
	text, err := n.client.Get(ctx, prefix+markName).Result()
	switch {
	case redis.IsPermissionError(err):
		n.markDenied = true
	case err == nil || errors.Is(err, redis.Nil):
		n.remarked = n.marked && text != n.mark
		n.mark, n.marked = text, true
	}
}

// markName is the key of a node's memory mark, behind the prefix.
const markName = "redlock:memory"

// complete says whether each node that answers has been through all its keys once.
func (f *finder) complete() bool {
	for _, n := range f.nodes {
		if n.err == nil && !n.once {
			return false
		}
	}
	return true
}

// fence is the latest fencing token of a lock that a node gave; 0: none.
func (f *finder) fence(key string) (latest uint64) {
	for _, n := range f.nodes {
		latest = max(latest, n.fences[key])
	}
	return latest
}

// scan looks at some more keys of the node.
func (n *nodeFinder) scan(ctx context.Context, prefix string) error {
	pattern := "*"
	if prefix != "" { // the queue's key has a brace before it
		pattern = "*" + quoteGlob(prefix) + "*"
	}
	for range scanSteps {
		names, cursor, err := n.client.Scan(ctx, n.cursor, pattern, scanCount).Result()
		if err != nil {
			return err
		}
		n.cursor = cursor
		if err := n.sort(ctx, names, prefix); err != nil {
			return err
		}
		if cursor == 0 {
			n.once = true
			break
		}
	}
	return nil
}

// sort tells locks, their queues and their counters from other keys.
func (n *nodeFinder) sort(ctx context.Context, names []string, prefix string) error {
	var doubtful []string
	for _, name := range names {
		key, what := protocol.LockOf(name)
		if !strings.HasPrefix(key, prefix) {
			continue
		}
		switch what {
		case protocol.AQueue:
			n.keys = append(n.keys, key[len(prefix):])
		case protocol.ALock:
			doubtful = append(doubtful, name)
		}
	}
	values, err := n.get(ctx, doubtful)
	for i, v := range values {
		if admin.IsLock(v) {
			n.keys = append(n.keys, doubtful[i][len(prefix):])
		}
	}
	return err
}

// count reads fencing counters.
func (n *nodeFinder) count(ctx context.Context, prefix string, keys []string) error {
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = fenceName(prefix + k)
	}
	values, err := n.get(ctx, names)
	n.fences = make(map[string]uint64)
	for i, v := range values {
		n.fences[keys[i]], _ = strconv.ParseUint(v, 10, 64)
	}
	return err
}

// get returns the strings at the keys, empty for those that have none.
func (n *nodeFinder) get(ctx context.Context, keys []string) ([]string, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	pipe := n.client.Pipeline()
	for _, k := range keys {
		pipe.GetRange(ctx, k, 0, getMost-1)
	}
	answers, err := pipe.Exec(ctx)
	if ctx.Err() != nil || len(answers) != len(keys) {
		return nil, err
	}
	values := make([]string, len(keys))
	for i, a := range answers {
		values[i], _ = a.(*redis.StringCmd).Result() // of another type, or gone by now
	}
	return values, nil
}

// fenceName is the key of a lock's fencing counter.
func fenceName(name string) string {
	if strings.Contains(name, "}") {
		return name + ":fence:"
	}
	return "{" + name + "}:fence"
}
