package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/quorumlock/redlock/internal/protocol"
)

const (
	// listBatch is how many keys a SCAN looks at: few enough that no lock waits for it.
	listBatch = 500
	// listPatience bounds the whole of it, in timeouts: a node with millions of other keys takes long.
	listPatience = 30
	// listAtOnce is how many locks are asked for their holders at once.
	listAtOnce = 16
	// listValue is how much of a value is read; locks have no more.
	listValue = 512
)

// lockValue is what this library stores under the key of a lock: a token and an owner.
var lockValue = regexp.MustCompile(`^[0-9a-f]{32}@`)

// isLock reports whether a value is that of a lock of this library: a token and an owner's label, or the mark of a
// lock that several hold.
func isLock(value string) bool { return lockValue.MatchString(value) || value == protocol.SharedMarker }

// Listing is the locks that were found.
type Listing struct {
	// Locks are ordered by their keys.
	Locks []Listed
	// Nodes has one entry per node, in the order of Names.
	Nodes []Searched
	// More: a node that answers was not searched to the end.
	More bool
}

// Listed is a lock, or what is left of one.
type Listed struct {
	Key string
	// Held: a majority of nodes has it. Otherwise an attempt is under way, or something was left behind.
	Held         bool
	Token, Owner string
	// TTL is how long a majority lasts, or the longest where there is none; negative if without end.
	TTL   time.Duration
	Nodes int // how many have it
	// Shared: several hold it together. Holders is empty where the nodes could not be asked.
	Shared  bool
	Holders []Holder
}

// Searched is how far the search of a node got.
type Searched struct {
	Node  string
	Keys  int  // that look like locks
	Whole bool // it was searched to the end
	// Denied is how many keys the user may not read. There may be locks among them.
	Denied int
	Err    error
}

// List finds locks by SCAN on all nodes at once, 500 keys at a time, which stops none of them. pattern
// is that of Redis for keys behind Options.KeyPrefix, such as "orders:*"; empty: all. A node's search ends
// early when it has found limit locks, or after 30 times Options.Timeout. A string that begins with a
// token, or the mark of a lock that several hold, counts as a lock. One that comes or goes meanwhile may
// be missing.
//
// It fails with ErrNoQuorum if fewer than a majority of nodes could be searched, with what was found,
// and with ctx's error. A limit below 1 is ErrInvalid.
func (n *Nodes) List(ctx context.Context, pattern string, limit int) (Listing, error) {
	if limit < 1 {
		return Listing{}, protocol.Invalid("list", []string{fmt.Sprintf("limit is %d: must be at least 1", limit)})
	}
	pattern = quoteGlob(n.opts.KeyPrefix) + cmp.Or(pattern, "*")
	searching, cancel := context.WithTimeout(ctx, listPatience*n.opts.Timeout)
	defer cancel()
	found := make([]search, len(n.clients))
	var group errgroup.Group
	for i, c := range n.clients {
		group.Go(func() error {
			found[i] = search{node: n.names[i], keys: make(map[string]seenKey)}
			found[i].run(searching, c, pattern, limit, n.opts.Timeout)
			found[i].err = protocol.Hinted(c, found[i].err)
			return nil
		})
	}
	_ = group.Wait()
	rest, cancel := context.WithTimeout(ctx, listPatience*n.opts.Timeout)
	defer cancel()
	all := make(map[string]seenKey)
	for _, s := range found {
		maps.Copy(all, s.keys)
	}
	names := slices.Collect(maps.Keys(all))
	for i, c := range n.clients {
		group.Go(func() error { found[i].complete(rest, c, names, n.opts.Timeout); return nil })
	}
	_ = group.Wait()
	if err := ended(ctx); err != nil {
		return Listing{}, fmt.Errorf("redlock: list: %w", err)
	}
	l := join(found, len(n.opts.KeyPrefix))
	group.SetLimit(listAtOnce)
	for i, x := range l.Locks {
		if !x.Shared {
			continue
		}
		group.Go(func() error {
			if s, err := n.Inspect(rest, x.Key); err == nil {
				l.Locks[i].Holders = s.Holders
			}
			return nil
		})
	}
	_ = group.Wait()
	searched := 0
	failed := &Error{Op: "list", Reason: ErrNoQuorum}
	for _, s := range l.Nodes {
		if s.Err == nil || s.Keys > 0 {
			searched++
		}
		failed.Nodes = append(failed.Nodes, NodeError{Node: s.Node, Err: s.Err})
	}
	if searched < n.Quorum() {
		return l, failed
	}
	return l, nil
}

// seenKey is a lock's key on one node.
type seenKey struct {
	value string
	ttl   time.Duration // negative: no end
}

// search is that of one node.
type search struct {
	node    string
	keys    map[string]seenKey
	awaited []string // keys of locks that have a queue, where names of all types are looked at
	cursor  uint64   // where the next step begins
	whole   bool
	// denied is how many keys the user may not read.
	denied int
	err    error
}

func (s *search) run(ctx context.Context, client *redis.Client, pattern string, limit int, timeout time.Duration) {
	for steps := 0; ; steps++ {
		if err := s.step(ctx, client, pattern, "string", timeout); err != nil {
			if s.err = err; steps > 0 && ctx.Err() != nil {
				s.err = nil // the time is up, which whole says
			}
			return
		}
		if s.cursor == 0 {
			s.whole = true
			return
		}
		if len(s.keys) >= limit {
			return
		}
	}
}

// complete looks for what was found on other nodes, where the search ended early.
func (s *search) complete(ctx context.Context, client *redis.Client, names []string, timeout time.Duration) {
	for some := range slices.Chunk(names, listBatch) {
		if s.whole || s.err != nil {
			return
		}
		s.err = s.take(ctx, timeout, func(ctx context.Context, p *search) error { return p.read(ctx, client, slices.Clone(some)) })
	}
}

// take adds what a page has, which it waits for.
func (s *search) take(ctx context.Context, timeout time.Duration, page func(context.Context, *search) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	from := s.cursor
	p, err := within(ctx, func() (*search, error) {
		p := &search{keys: make(map[string]seenKey), cursor: from}
		return p, page(ctx, p)
	})
	if p == nil {
		return err
	}
	if err == nil {
		s.cursor = p.cursor
	}
	maps.Copy(s.keys, p.keys)
	s.awaited, s.denied = append(s.awaited, p.awaited...), s.denied+p.denied
	return err
}

// step looks at some more keys, of all types if it is empty.
func (s *search) step(ctx context.Context, client *redis.Client, pattern, ofType string, timeout time.Duration) error {
	return s.take(ctx, timeout, func(ctx context.Context, p *search) error { return p.page(ctx, client, pattern, ofType) })
}

// page is a step.
func (s *search) page(ctx context.Context, client *redis.Client, pattern, ofType string) error {
	scan := client.Scan(ctx, s.cursor, pattern, listBatch)
	if ofType != "" {
		scan = client.ScanType(ctx, s.cursor, pattern, listBatch, ofType)
	}
	keys, next, err := scan.Result()
	if err != nil {
		return err
	}
	s.cursor = next
	return s.read(ctx, client, keys)
}

// read looks at what is under the keys.
func (s *search) read(ctx context.Context, client *redis.Client, keys []string) error {
	keys = slices.DeleteFunc(keys, func(name string) bool {
		key, lock, queue := protocol.LockOf(name)
		if queue {
			s.awaited = append(s.awaited, key)
		}
		return !lock
	})
	if len(keys) == 0 {
		return nil
	}
	values, ttls := make([]*redis.StringCmd, len(keys)), make([]*redis.DurationCmd, len(keys))
	_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, k := range keys {
			values[i], ttls[i] = p.GetRange(ctx, k, 0, listValue-1), p.PTTL(ctx, k)
		}
		return nil
	})
	for i, k := range keys {
		// Of one that went away, or became another thing, there is an error or nothing.
		if v, err := values[i].Result(); err == nil && isLock(v) && ttls[i].Err() == nil && ttls[i].Val() != -2 {
			s.keys[k] = seenKey{v, ttls[i].Val()}
		}
		if err := cmp.Or(values[i].Err(), ttls[i].Err()); redis.IsPermissionError(err) {
			if strings.Contains(err.Error(), "command") { // of no key, so nothing will be found
				return err
			}
			s.denied++
		}
	}
	if answered := (redis.Error)(nil); errors.As(err, &answered) {
		return nil
	}
	return err
}

// quoteGlob is a pattern that matches only the text.
func quoteGlob(text string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`).Replace(text)
}

// join puts together what the nodes have.
func join(found []search, prefix int) (out Listing) {
	quorum := len(found)/2 + 1
	leases := make(map[string]map[string][]time.Duration) // by key and value
	for _, s := range found {
		out.Nodes = append(out.Nodes, Searched{Node: s.node, Keys: len(s.keys), Whole: s.whole, Denied: s.denied, Err: s.err})
		out.More = out.More || s.err == nil && !s.whole
		for k, v := range s.keys {
			if leases[k] == nil {
				leases[k] = make(map[string][]time.Duration)
			}
			leases[k][v.value] = append(leases[k][v.value], v.ttl)
		}
	}
	for k, values := range leases {
		for v, ttls := range values {
			l := Listed{Key: k[prefix:], Nodes: len(ttls), Held: len(ttls) >= quorum, TTL: lasting(ttls, quorum)}
			if l.Shared = v == protocol.SharedMarker; !l.Shared {
				l.Token, l.Owner, _ = strings.Cut(v, "@")
			}
			out.Locks = append(out.Locks, l)
		}
	}
	slices.SortFunc(out.Locks, func(a, b Listed) int { return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(b.Nodes, a.Nodes)) })
	return out
}

// lasting is how long a quorum of the leases lasts, or the longest where there is none. It is
// negative where that has no end.
func lasting(ttls []time.Duration, quorum int) time.Duration {
	slices.SortFunc(ttls, func(a, b time.Duration) int {
		return cmp.Compare(uint64(b), uint64(a)) // what has no end comes first
	})
	if len(ttls) < quorum {
		return ttls[0]
	}
	return ttls[quorum-1]
}
