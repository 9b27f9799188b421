package admin

import (
	"context"
	"slices"
	"strconv"

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
	s := &Search{nodes: n, once: make([]bool, len(n.clients))}
	for i := range n.clients {
		s.found = append(s.found, n.searchOf(i))
	}
	return s
}

// Look goes on where the last one ended: each node looks at about 1,000 keys, by SCAN, and at the fencing
// counters of the locks with these keys, within Options.Timeout. It fails with ctx's error alone.
func (s *Search) Look(ctx context.Context, keys []string) (Sight, error) {
	n := s.nodes
	asking, cancel := context.WithTimeout(ctx, n.opts.Timeout)
	defer cancel()
	clients, done := n.open()
	defer done()
	// The queue's key has a brace before the prefix.
	pattern := "*" + quoteGlob(n.opts.KeyPrefix) + "*"
	sight := Sight{Fences: make(map[string]uint64), Whole: true, Nodes: make([]NodeError, len(n.clients))}
	fences := make([]map[string]uint64, len(n.clients))
	var group errgroup.Group
	for i, c := range clients {
		group.Go(func() error {
			start, f := n.clock.Now(), &s.found[i]
			f.look(asking, c, pattern)
			s.once[i] = s.once[i] || f.err == nil && f.cursor == 0
			if f.err == nil {
				fences[i], f.err = within(asking, func() (map[string]uint64, error) { return n.fences(asking, c, keys) })
			}
			sight.Nodes[i] = NodeError{n.names[i], protocol.Hinted(n.clients[i], f.err), n.clock.Now().Since(start)}
			return nil
		})
	}
	_ = group.Wait()
	for i := range s.found {
		f := &s.found[i]
		sight.Whole = sight.Whole && (f.err != nil || s.once[i])
		for _, name := range slices.Concat(f.awaited, f.keys) {
			sight.Keys = append(sight.Keys, name[len(n.opts.KeyPrefix):])
		}
		for key, token := range fences[i] {
			sight.Fences[key] = max(sight.Fences[key], token)
		}
	}
	slices.Sort(sight.Keys)
	sight.Keys = slices.Compact(sight.Keys)
	return sight, n.ended(ctx)
}

// look is what a node is asked in one look.
func (s *search) look(ctx context.Context, c *redis.Client, pattern string) {
	s.keys, s.awaited = nil, nil
	for range 2 {
		p, err := s.step(ctx, c, pattern, "")
		if p != nil {
			s.awaited = append(s.awaited, p.awaited...)
			for _, f := range p.locks {
				s.keys = append(s.keys, f.name)
			}
		}
		if s.err = err; err != nil || s.cursor == 0 {
			return
		}
	}
}

// fences are the fencing counters of locks on one node.
func (n *Nodes) fences(ctx context.Context, c *redis.Client, keys []string) (map[string]uint64, error) {
	all := make(map[string]uint64)
	for some := range slices.Chunk(keys, listBatch) {
		answers, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, k := range some {
				name := n.opts.KeyPrefix + k
				p.GetRange(ctx, protocol.NamingOf(name).FenceKey(name), 0, listValue-1)
			}
			return nil
		})
		for i, a := range answers {
			text, _ := a.(*redis.StringCmd).Result() // of another type, or denied
			if token, err := strconv.ParseUint(text, 10, 64); err == nil {
				all[some[i]] = token
			}
		}
		if err != nil && !protocol.IsServerError(err) {
			return all, err
		}
	}
	return all, nil
}
