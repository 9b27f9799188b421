package admin

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/quorumlock/redlock/internal/protocol"
)

// Search finds locks bit by bit, for tools that watch: nothing keeps a list of locks. It is made by
// Nodes.Search, is for one goroutine at a time, and need not be closed.
type Search struct {
	nodes *Nodes
	found []search
	once  []bool // the node has been through all its keys
}

// Sight is what one look of a Search has found.
type Sight struct {
	// Keys are of locks that are held or awaited, without Options.KeyPrefix. Many are there for each node.
	Keys []string
	// Fences are the latest fencing tokens of the locks that were asked for, those that have any.
	Fences map[string]uint64
	// Whole: each node that answers has been through all its keys at least once.
	Whole bool
	// Nodes has one entry per node, in the order of Names.
	Nodes []NodeError
}

// Search begins to look for locks. No node is asked.
func (n *Nodes) Search() *Search {
	return &Search{nodes: n, found: make([]search, len(n.clients)), once: make([]bool, len(n.clients))}
}

// Look goes on where the last one ended: each node looks at about 1,000 keys, by SCAN, and at the fencing
// counters of the locks with these keys, within Options.Timeout. It fails with ctx's error alone.
func (s *Search) Look(ctx context.Context, keys []string) (Sight, error) {
	n := s.nodes
	asking, cancel := context.WithTimeout(ctx, n.opts.Timeout)
	defer cancel()
	// The queue's key has a brace before the prefix.
	pattern := "*" + quoteGlob(n.opts.KeyPrefix) + "*"
	sight := Sight{Fences: make(map[string]uint64), Whole: true, Nodes: make([]NodeError, len(n.clients))}
	fences := make([]map[string]uint64, len(n.clients))
	var group errgroup.Group
	for i, c := range n.clients {
		group.Go(func() error {
			start, f := n.clock.Now(), &s.found[i]
			f.look(asking, c, pattern, n.opts.Timeout)
			s.once[i] = s.once[i] || f.err == nil && f.cursor == 0
			if f.err == nil {
				fences[i], f.err = within(asking, func() (map[string]uint64, error) { return n.fences(asking, c, keys) })
			}
			sight.Nodes[i] = NodeError{n.names[i], protocol.Hinted(c, f.err), n.clock.Now().Since(start)}
			return nil
		})
	}
	_ = group.Wait()
	for i := range s.found {
		f := &s.found[i]
		sight.Whole = sight.Whole && (f.err != nil || s.once[i])
		for _, name := range slices.AppendSeq(f.awaited, maps.Keys(f.keys)) {
			if key, ours := strings.CutPrefix(name, n.opts.KeyPrefix); ours {
				sight.Keys = append(sight.Keys, key)
			}
		}
		for key, token := range fences[i] {
			sight.Fences[key] = max(sight.Fences[key], token)
		}
	}
	slices.Sort(sight.Keys)
	sight.Keys = slices.Compact(sight.Keys)
	return sight, ended(ctx)
}

// look is what a node is asked in one look.
func (s *search) look(ctx context.Context, c *redis.Client, pattern string, timeout time.Duration) {
	s.keys, s.awaited = make(map[string]seenKey), nil
	for range 2 {
		if s.err = s.step(ctx, c, pattern, "", timeout); s.err != nil || s.cursor == 0 {
			return
		}
	}
}

// fences are the fencing counters of locks on one node.
func (n *Nodes) fences(ctx context.Context, c *redis.Client, keys []string) (map[string]uint64, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	answers, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, k := range keys {
			name := n.opts.KeyPrefix + k
			p.GetRange(ctx, protocol.NamingOf(name).FenceKey(name), 0, listValue-1)
		}
		return nil
	})
	all := make(map[string]uint64)
	for i, a := range answers {
		text, _ := a.(*redis.StringCmd).Result() // of another type, or denied
		if token, err := strconv.ParseUint(text, 10, 64); err == nil {
			all[keys[i]] = token
		}
	}
	if protocol.IsServerError(err) {
		err = nil
	}
	return all, err
}
