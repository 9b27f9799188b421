package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/quorumlock/redlock/internal/conn"
	"github.com/quorumlock/redlock/internal/protocol"
)

const (
	// listBatch is how many keys a SCAN looks at: few enough that no lock waits for it.
	listBatch = 500
	// listPatience bounds the whole of it, in timeouts: a node with millions of other keys takes long.
	listPatience = 30
	// listAtOnce is how many locks are asked for their holders at once: each node may answer with a megabyte.
	listAtOnce = 4
	// listValue is how much of a value is read; locks have no more.
	listValue = 512
	// listRoom is what a listing keeps of all nodes, by the bytes of names and values, perLock for each, and perLease
	// for each of a lock on a node: 44,000 locks on three nodes, with names of 40 bytes.
	listRoom = 16 << 20
	perLock  = 256
	perLease = 8
	// holdersRoom is what it keeps of their holders, and perHolder for each beside its bytes.
	holdersRoom = 8 << 20
	perHolder   = 64
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
	// More: a node that answers was not searched to the end, or there was no room for all of what was found.
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
	// Shared: several hold it together. Holders is empty where the nodes could not be asked, or More.
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

// List finds locks by SCAN on all nodes, 500 keys at a time, which stops none of them. pattern
// is that of Redis for keys behind Options.KeyPrefix, such as "orders:*"; empty: all. A node's search ends
// early when it has found limit locks, or after 30 times Options.Timeout. A string that begins with a
// token, or the mark of a lock that several hold, counts as a lock. One that comes or goes meanwhile may
// be missing. A listing keeps 16 MB, at best 40,000 locks; Err tells where it was full.
//
// It fails with ErrNoQuorum if fewer than a majority of nodes could be searched, with what was found,
// and with ctx's error. A limit below 1 is ErrInvalid.
func (n *Nodes) List(ctx context.Context, pattern string, limit int) (Listing, error) {
	if limit < 1 {
		return Listing{}, protocol.Invalid("list", []string{fmt.Sprintf("limit is %d: must be at least 1", limit)})
	}
	pattern = quoteGlob(n.opts.KeyPrefix) + cmp.Or(pattern, "*")
	clients, done := n.open()
	defer done()
	searching, cancel := context.WithTimeout(ctx, listPatience*n.opts.Timeout)
	defer cancel()
	found, known := make([]search, len(clients)), newCatalogue(len(clients))
	var group errgroup.Group
	for i, c := range clients {
		group.Go(func() error {
			found[i] = n.searchOf(i)
			found[i].run(searching, c, pattern, limit, known)
			return nil
		})
	}
	_ = group.Wait()
	rest, cancel := context.WithTimeout(ctx, listPatience*n.opts.Timeout)
	defer cancel()
	for i, c := range clients {
		group.Go(func() error { found[i].complete(rest, c, known); return nil })
	}
	_ = group.Wait()
	if err := n.ended(ctx); err != nil {
		return Listing{}, fmt.Errorf("redlock: list: %w", err)
	}
	l := known.listing(found, len(n.opts.KeyPrefix))
	n.findHolders(rest, clients, &l)
	searched := 0
	failed := &Error{Op: "list", Reason: ErrNoQuorum}
	for i, s := range l.Nodes {
		if s.Err == nil || s.Keys > 0 {
			searched++
		}
		l.Nodes[i].Err = protocol.Hinted(n.clients[i], s.Err)
		failed.Nodes = append(failed.Nodes, NodeError{Node: s.Node, Err: l.Nodes[i].Err})
	}
	if searched < n.Quorum() {
		return l, failed
	}
	return l, nil
}

// findHolders asks for the holders of the locks that several hold.
func (n *Nodes) findHolders(ctx context.Context, clients []*redis.Client, l *Listing) {
	var room atomic.Int64
	room.Store(holdersRoom)
	var group errgroup.Group
	group.SetLimit(listAtOnce)
	for i, x := range l.Locks {
		if !x.Shared {
			continue
		}
		group.Go(func() error {
			if room.Load() < 0 {
				return nil
			}
			s, err := n.inspect(ctx, clients, x.Key)
			takes := int64(0)
			for _, h := range s.Holders {
				takes += int64(perHolder + len(h.Token) + len(h.Owner))
			}
			if err == nil && room.Add(-takes) >= 0 {
				l.Locks[i].Holders = s.Holders
			}
			return nil
		})
	}
	_ = group.Wait()
	l.More = l.More || room.Load() < 0
}

// search is that of one node.
type search struct {
	at            int
	node, prefix  string
	timeout       time.Duration
	cursor        uint64 // where the next step begins
	whole         bool
	keys, awaited []string // of locks that were found in this look, and of those that have a queue
	found         int      // how many are in the catalogue
	denied        int      // keys that the user may not read
	err           error
}

// searchOf begins the search of a node.
func (n *Nodes) searchOf(i int) search {
	return search{at: i, node: n.names[i], prefix: n.opts.KeyPrefix, timeout: n.opts.Timeout}
}

// run searches a node for strings. What the catalogue has no room for is left out: the rest may be in it
// already, by another node.
func (s *search) run(ctx context.Context, client *redis.Client, pattern string, limit int, known *catalogue) {
	full := false
	for steps := 0; s.cursor != 0 || steps == 0; steps++ {
		p, err := s.step(ctx, client, pattern, "string")
		full = !known.take(s, p) || full
		if err != nil {
			if s.err = err; steps > 0 && ctx.Err() != nil {
				s.err = nil // the time is up, which whole says
			}
			break
		}
		if s.whole = s.cursor == 0; s.found >= limit {
			break
		}
	}
	s.note(full)
}

// note says that the catalogue was full.
func (s *search) note(full bool) {
	if full {
		s.whole, s.err = false, cmp.Or(s.err, errListing)
	}
}

// errListing is of a node which has more than its part of a listing.
var errListing = fmt.Errorf("it has more than its part of what a listing keeps (%d bytes for all nodes): a narrower pattern finds the rest", listRoom)

// complete looks for what was found on other nodes, where the search ended early or was not kept as a whole.
func (s *search) complete(ctx context.Context, client *redis.Client, known *catalogue) {
	if s.whole || s.err != nil && !errors.Is(s.err, errListing) {
		return
	}
	full := false
	for names := range slices.Chunk(known.lacks(s.at), listBatch) {
		p, err := s.take(ctx, func(ctx context.Context, p *page) error { return p.read(ctx, client, names) })
		full = !known.take(s, p) || full
		if err != nil {
			s.err = cmp.Or(s.err, err)
			break
		}
	}
	s.note(full)
}

// page is what a node says at once.
type page struct {
	prefix  string
	locks   []find
	awaited []string // keys of locks that have a queue, where names of all types are looked at
	denied  int
	cursor  uint64
}

// find is a lock's key on one node.
type find struct {
	name, value string
	ttl         time.Duration // negative: no end
}

// take waits for a page, which is nil if it does not come in time.
func (s *search) take(ctx context.Context, ask func(context.Context, *page) error) (*page, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	from := page{prefix: s.prefix, cursor: s.cursor}
	p, err := within(ctx, func() (*page, error) {
		p := from
		return &p, ask(ctx, &p)
	})
	if p != nil {
		s.denied += p.denied
		if err == nil {
			s.cursor = p.cursor
		}
	}
	return p, err
}

// step looks at some more keys, of all types if it is empty.
func (s *search) step(ctx context.Context, client *redis.Client, pattern, ofType string) (*page, error) {
	return s.take(ctx, func(ctx context.Context, p *page) error { return p.scan(ctx, client, pattern, ofType) })
}

// scan is a step. Where the names of so many keys are too long for one exchange, it looks at fewer.
func (p *page) scan(ctx context.Context, client *redis.Client, pattern, ofType string) error {
	var names []string
	var next uint64
	for count := int64(listBatch); ; count /= 10 {
		scan := client.Scan(ctx, p.cursor, pattern, count)
		if ofType != "" {
			scan = client.ScanType(ctx, p.cursor, pattern, count, ofType)
		}
		var err error
		if names, next, err = scan.Result(); err == nil {
			break
		}
		if !conn.TooMuch(err) || count < 10 {
			return err
		}
	}
	p.cursor = next
	var locks []string
	for _, name := range names {
		key, lock, queue := protocol.LockOf(name)
		switch {
		case len(key) > protocol.MaxKeyName || !strings.HasPrefix(key, p.prefix): // no lock's, or no answer to the pattern
		case lock:
			locks = append(locks, name)
		case queue:
			p.awaited = append(p.awaited, key)
		}
	}
	for some := range slices.Chunk(locks, listBatch) {
		if err := p.read(ctx, client, some); err != nil {
			return err
		}
	}
	return nil
}

// read looks at what is under the keys.
func (p *page) read(ctx context.Context, client *redis.Client, keys []string) error {
	values, ttls := make([]*redis.StringCmd, len(keys)), make([]*redis.DurationCmd, len(keys))
	_, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, k := range keys {
			values[i], ttls[i] = pipe.GetRange(ctx, k, 0, listValue-1), pipe.PTTL(ctx, k)
		}
		return nil
	})
	for i, k := range keys {
		// Of one that went away, or became another thing, there is an error or nothing.
		v, verr := values[i].Result()
		if len(v) > listValue {
			return fmt.Errorf("it answers GETRANGE with %d bytes, of %d that were asked for", len(v), listValue)
		}
		if verr == nil && isLock(v) && ttls[i].Err() == nil && ttls[i].Val() != absent {
			p.locks = append(p.locks, find{k, v, ttls[i].Val()})
		}
		if err := cmp.Or(verr, ttls[i].Err()); redis.IsPermissionError(err) {
			if strings.Contains(err.Error(), "command") { // of no key, so nothing will be found
				return err
			}
			p.denied++
		}
	}
	if answered := (redis.Error)(nil); errors.As(err, &answered) {
		return nil
	}
	return err
}

// absent is what PTTL says of a key that is not there.
const absent = time.Duration(-2)

// catalogue is what a listing has found. What two nodes have is kept once, and charged to the one that told it
// first: each has its part of the room, so that one that tells anything does not use up that of the others.
type catalogue struct {
	mu     sync.Mutex // guards what follows; no other is taken under it
	room   []int      // that is left to each node
	leases map[identity][]time.Duration
}

// identity is a lock's: what another has held is another.
type identity struct{ name, value string }

func newCatalogue(nodes int) *catalogue {
	return &catalogue{room: slices.Repeat([]int{listRoom / nodes}, nodes), leases: make(map[identity][]time.Duration)}
}

// take takes in what a node has told, if there is anything; all reports whether there was room for it.
func (c *catalogue) take(s *search, p *page) (all bool) {
	if p == nil {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	all = true
	for _, f := range p.locks {
		of := identity{f.name, f.value}
		leases := c.leases[of]
		if leases == nil {
			takes := perLock + perLease*len(c.room) + len(f.name) + len(f.value)
			if takes > c.room[s.at] {
				all = false
				continue
			}
			c.room[s.at] -= takes
			leases = slices.Repeat([]time.Duration{absent}, len(c.room))
			c.leases[of] = leases
		}
		if leases[s.at] == absent {
			s.found++
		}
		leases[s.at] = f.ttl
	}
	return all
}

// lacks are the names of what a node did not tell.
func (c *catalogue) lacks(node int) (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for of, leases := range c.leases {
		if leases[node] == absent {
			names = append(names, of.name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// listing puts together what the nodes have. prefix is how much of a name is not the key.
func (c *catalogue) listing(found []search, prefix int) (out Listing) {
	quorum := len(found)/2 + 1
	for _, s := range found {
		out.Nodes = append(out.Nodes, Searched{Node: s.node, Keys: s.found, Whole: s.whole, Denied: s.denied, Err: s.err})
		out.More = out.More || !s.whole && (s.err == nil || errors.Is(s.err, errListing))
	}
	out.Locks = make([]Listed, 0, len(c.leases))
	for of, leases := range c.leases {
		ttls := slices.DeleteFunc(leases, func(d time.Duration) bool { return d == absent })
		l := Listed{Key: of.name[prefix:], Nodes: len(ttls), Held: len(ttls) >= quorum, TTL: lasting(ttls, quorum)}
		if l.Shared = of.value == protocol.SharedMarker; !l.Shared {
			l.Token, l.Owner, _ = strings.Cut(of.value, "@")
		}
		out.Locks = append(out.Locks, l)
	}
	slices.SortFunc(out.Locks, func(a, b Listed) int { return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(b.Nodes, a.Nodes)) })
	return out
}

// quoteGlob is a pattern that matches only the text.
func quoteGlob(text string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`).Replace(text)
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
