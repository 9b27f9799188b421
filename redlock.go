package redlock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"golang.org/x/sync/errgroup"
)

// Redlock holds the way to N independent Redis masters. It is made by Open or New, is
// safe for use by any number of goroutines, and is meant to be shared: one for each
// set of nodes in a process.
type Redlock struct {
	opts  Options
	nodes []*node
	// clients are the nodes', for what does not go by the lanes: Check.
	clients []redis.UniversalClient
	names   []string
	quorum  int
	clock   clock
	random  io.Reader // nil: crypto/rand

	lastFence lastFence

	keeper *keeper
	guard  *guard // nil: none
	lines  *lines
	owned  []redis.UniversalClient

	closing  chan struct{} // closed by Close
	busy     atomic.Int64  // acquires that may still have something to take back
	idle     chan struct{} // one token: busy came down to zero while closing
	closeOne sync.Once
	closeErr error
}

const (
	// openPatience bounds how long Open waits for a node that does not answer.
	openPatience = time.Second
	// openPool is the size of the pools that Open makes. A lane needs one connection;
	// go-redis stops dialing for a second after as many failures as the pool is large.
	openPool = 64
)

// Open connects to the nodes and returns when each has answered or has had a second to
// do so. Each address is "host:port", or a redis://, rediss:// (TLS) or unix:// URL,
// which may carry user, password and database number.
//
// A minority of the nodes may be down; they are used as soon as they answer. It fails
// with ErrNoQuorum if a majority is down or refuses us, with ErrDuplicateNode if the
// same server was given twice (the same address and database, or the same run id), with
// ErrInvalid for options or addresses that break a rule, and with ctx's error. Nothing
// is written to the nodes. Close the Redlock to close the connections.
func Open(ctx context.Context, addrs []string, opts *Options) (*Redlock, error) {
	o, broken := opts.withDefaults()
	parsed, err := parseAddrs(addrs)
	if err := errors.Join(broken, err); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("redlock: open: %w", err)
	}
	names := make([]string, len(parsed))
	for i, p := range parsed {
		names[i] = p.Addr + "/" + strconv.Itoa(p.DB)
	}
	clk := newSystemClock()
	g := newGuard(names, &o, clk)
	clients, wires := make([]redis.UniversalClient, len(parsed)), make([]*redisWire, len(parsed))
	for i, p := range parsed {
		side := sideClient(p)
		clients[i], wires[i] = side, newOwnWire(p, side, clk)
	}
	rl := assemble(clients, wires, o, clk, g)
	rl.owned = clients
	if err := rl.greet(ctx); err != nil {
		_ = rl.Close()
		return nil, err
	}
	return rl, nil
}

// New uses clients that the caller made and goes on owning, whatever their settings.
// Each client is one node: a *redis.Client, a Sentinel failover client, or a cluster
// or ring client, which counts as one node although it is many servers (see the
// package documentation for what that is worth). New does no I/O.
//
// It fails with ErrInvalid for options that break a rule, for no clients and for nil
// ones, and with ErrDuplicateNode if a client is given twice. Clients that lead to the
// same server are found out by its run id once both have answered, unless the restart
// guard is off: acquires then fail with ErrDuplicateNode.
func New(clients []redis.UniversalClient, opts *Options) (*Redlock, error) {
	o, broken := opts.withDefaults()
	if err := errors.Join(broken, checkClients(clients)); err != nil {
		return nil, err
	}
	return build(slices.Clone(clients), o, newSystemClock()), nil
}

func checkClients(clients []redis.UniversalClient) error {
	if len(clients) == 0 {
		return invalid("nodes", []string{"no clients: at least one is needed"})
	}
	var broken []string
	var duplicates []error
	first := make(map[redis.UniversalClient]int)
	for i, c := range clients {
		if c == nil || reflect.ValueOf(c).Kind() == reflect.Pointer && reflect.ValueOf(c).IsNil() {
			broken = append(broken, fmt.Sprintf("client %d is nil", i))
			continue
		}
		if !reflect.ValueOf(c).Comparable() {
			continue
		}
		if j, ok := first[c]; ok {
			duplicates = append(duplicates, fmt.Errorf("redlock: %w: clients %d and %d are the same", ErrDuplicateNode, j, i))
			continue
		}
		first[c] = i
	}
	return errors.Join(append(duplicates, invalid("nodes", broken))...)
}

func build(clients []redis.UniversalClient, o Options, clk clock) *Redlock {
	wires := make([]*redisWire, len(clients))
	for i, c := range clients {
		wires[i] = newRedisWire(c, clk)
	}
	return assemble(clients, wires, o, clk, newGuard(nodeNames(clients), &o, clk))
}

func assemble(clients []redis.UniversalClient, wires []*redisWire, o Options, clk clock, g *guard) *Redlock {
	rl := &Redlock{
		opts:    o,
		clients: clients,
		names:   nodeNames(clients),
		quorum:  majority(len(clients)),
		clock:   clk,
		keeper:  newKeeper(clk),
		guard:   g,
		closing: make(chan struct{}),
		idle:    make(chan struct{}, 1),
	}
	for i, w := range wires {
		rl.addNode(rl.names[i], w)
	}
	rl.lines = newLines(rl)
	return rl
}

func (rl *Redlock) addNode(name string, w wire) {
	var changes inOrder
	onChange := func(down bool, err error) {
		switch h := rl.opts.Hooks; {
		case down && h.NodeDown != nil:
			changes.do(func() { h.NodeDown(NodeInfo{Node: name, Err: explained(err)}) })
		case !down && h.NodeUp != nil:
			changes.do(func() { h.NodeUp(NodeInfo{Node: name}) })
		}
	}
	rl.guard.watch(len(rl.nodes), name, w)
	rl.nodes = append(rl.nodes, &node{name: name, hash: fnv1a(name), lane: newLane(w, rl.clock, onChange)})
}

// nodeNames names each node by address and database, and numbers those that are equal.
func nodeNames(clients []redis.UniversalClient) []string {
	names := make([]string, len(clients))
	count := make(map[string]int)
	for i, c := range clients {
		switch c := c.(type) {
		case *redis.Client:
			names[i] = c.Options().Addr + "/" + strconv.Itoa(c.Options().DB)
		case *redis.ClusterClient:
			names[i] = "cluster(" + strings.Join(c.Options().Addrs, ",") + ")"
		case *redis.Ring:
			shards := make([]string, 0, len(c.Options().Addrs))
			for _, a := range c.Options().Addrs {
				shards = append(shards, a)
			}
			slices.Sort(shards)
			names[i] = "ring(" + strings.Join(shards, ",") + ")"
		default:
			names[i] = fmt.Sprintf("%T", c)
		}
		count[names[i]]++
	}
	for i, name := range names {
		if count[name] > 1 {
			names[i] = fmt.Sprintf("%s#%d", name, i)
		}
	}
	return names
}

// parseAddrs reads all addresses, or reports all that are wrong. No password gets
// into an error.
func parseAddrs(addrs []string) ([]*redis.Options, error) {
	if len(addrs) == 0 {
		return nil, invalid("nodes", []string{"no addresses: at least one is needed"})
	}
	var broken []string
	var duplicates []error
	first := make(map[string]int)
	parsed := make([]*redis.Options, len(addrs))
	for i, addr := range addrs {
		o, err := parseAddr(addr)
		if err != nil {
			broken = append(broken, fmt.Sprintf("address %d, %s", i, err))
			continue
		}
		parsed[i] = o
		id := fmt.Sprintf("%s %s/%d", o.Network, strings.ToLower(o.Addr), o.DB)
		if j, ok := first[id]; ok {
			duplicates = append(duplicates, fmt.Errorf("redlock: %w: addresses %d and %d are both %s/%d", ErrDuplicateNode, j, i, o.Addr, o.DB))
			continue
		}
		first[id] = i
	}
	return parsed, errors.Join(append(duplicates, invalid("nodes", broken))...)
}

func parseAddr(addr string) (*redis.Options, error) {
	o := &redis.Options{Network: "tcp", Addr: addr}
	if strings.Contains(addr, "://") {
		var err error
		if o, err = redis.ParseURL(addr); err != nil {
			u, uerr := url.Parse(addr)
			if uerr != nil { // whose text shows the address
				return nil, errors.New("what has :// in it: is no well-formed URL")
			}
			return nil, fmt.Errorf("%q: must be host:port or a redis://, rediss:// or unix:// URL: %w", u.Scheme+"://"+u.Host+u.Path, err)
		}
	} else {
		host, port, err := net.SplitHostPort(addr)
		n, perr := strconv.ParseUint(port, 10, 16)
		if secret := strings.LastIndex(addr, "@"); secret >= 0 {
			return nil, fmt.Errorf("%q: has no room for user and password, which a redis:// URL has", "..."+addr[secret:])
		}
		if err != nil || perr != nil || host == "" || n == 0 {
			return nil, fmt.Errorf("%q: must be host:port, with a port from 1 to 65535, or a redis://, rediss:// or unix:// URL", addr)
		}
	}
	if o.Protocol == 0 {
		// Locks need nothing of RESP3, and go-redis looks for push messages before
		// each reply there.
		o.Protocol = 2
	}
	if o.PoolSize == 0 {
		o.PoolSize = openPool
	}
	if o.DialTimeout == 0 {
		o.DialTimeout = openPatience
	}
	// One dial and one try: a node that is down must say so at once, and what to try
	// again is the library's decision.
	o.MaxRetries, o.DialerRetries = -1, 1
	o.ContextTimeoutEnabled = true
	o.PipelinePoolSize = -1
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return o, nil
}

// greet asks all nodes for their run ids and fails if that finds a server twice, or no
// majority at all.
func (rl *Redlock) greet(ctx context.Context) error {
	start := rl.clock.now()
	asking, cancel := context.WithTimeout(ctx, openPatience)
	defer cancel()
	var (
		outcomes = make([]Outcome, len(rl.nodes))
		ids      = make([]string, len(rl.nodes))
		group    errgroup.Group
	)
	for i := range rl.owned {
		group.Go(func() error {
			var err error
			ids[i], err = rl.nodes[i].lane.wire.(*redisWire).talk.(*conversations).greet(asking, openPatience)
			outcomes[i] = Outcome{
				Node: rl.names[i], Vote: VoteGranted, Err: explained(err),
				Elapsed: rl.clock.now().since(start),
			}
			switch {
			case err != nil && isServerError(err):
				outcomes[i].Vote = VoteFailed
			case err != nil:
				outcomes[i].Vote = VoteBarred
			}
			return nil
		})
	}
	_ = group.Wait()
	if end, ok := ctx.Deadline(); ok && !rl.clock.now().time.Before(end) {
		<-ctx.Done() // connections time out a little earlier than their context
	}

	var duplicates []error
	up, first := 0, make(map[string]int)
	for i, id := range ids {
		if outcomes[i].Vote == VoteGranted {
			up++
		}
		if j, ok := first[id]; ok && id != "" {
			duplicates = append(duplicates, fmt.Errorf("redlock: %w: %s and %s are the same server, run id %s", ErrDuplicateNode, rl.names[j], rl.names[i], id))
			continue
		}
		first[id] = i
	}
	switch {
	case duplicates != nil:
		return errors.Join(duplicates...)
	case up >= rl.quorum:
		return nil
	default:
		return &QuorumError{Op: "open", Need: rl.quorum, Outcomes: outcomes, reasons: ended(ctx, ErrNoQuorum)}
	}
}

// ended puts the error of a context that is over in front of other reasons.
func ended(ctx context.Context, reasons ...error) []error {
	err := ctx.Err()
	if err == nil {
		return reasons
	}
	all := []error{err}
	if cause := context.Cause(ctx); !errors.Is(err, cause) {
		all = append(all, cause)
	}
	return append(all, reasons...)
}

// Quorum returns how many nodes must grant: more than half of them.
func (rl *Redlock) Quorum() int { return rl.quorum }

// Nodes returns the nodes' names, address/database, in the order in which they were
// given. Equal ones have "#" and their index behind them.
func (rl *Redlock) Nodes() []string { return append([]string(nil), rl.names...) }

// Close ends every waiting Acquire with ErrClosed, sends the releases that are on
// their way, waiting for them no longer than the timeout per node, and closes the
// connections that Open made. Locks that are held are not released: their keys stay
// until their TTL ends, and are not renewed. Calls after Close return ErrClosed.
func (rl *Redlock) Close() error {
	rl.closeOne.Do(func() { rl.closeErr = rl.close() })
	return rl.closeErr
}

func (rl *Redlock) close() error {
	close(rl.closing)
	rl.keeper.stop()
	over := make(chan struct{})
	limit := rl.clock.afterFunc(rl.opts.nodeTimeout(rl.opts.TTL), func() { close(over) })
	defer limit.Stop()

	if rl.busy.Load() > 0 {
		select {
		case <-rl.idle:
		case <-over:
		}
	}
	flushed := rl.lines.close()
	now := rl.clock.now().mono
	for _, n := range rl.nodes {
		flushed = append(flushed, n.lane.close(now))
	}
	for _, f := range flushed {
		select {
		case <-f:
		case <-over:
		}
	}
	for _, n := range rl.nodes {
		n.lane.abandon(now)
		if w, ok := n.lane.wire.(interface{ close() }); ok {
			w.close()
		}
	}
	var errs []error
	for _, c := range rl.owned {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// enter announces an operation that may have something to take back. Each enter that
// returns true is followed by one leave.
func (rl *Redlock) enter() bool {
	rl.busy.Add(1)
	if rl.isClosed() {
		rl.leave()
		return false
	}
	return true
}

func (rl *Redlock) leave() {
	if rl.busy.Add(-1) == 0 && rl.isClosed() {
		select {
		case rl.idle <- struct{}{}:
		default:
		}
	}
}

func (rl *Redlock) isClosed() bool {
	select {
	case <-rl.closing:
		return true
	default:
		return false
	}
}

// tokenLen is the length of a token in hexadecimal digits.
const tokenLen = 32

// newValue makes what an attempt puts under its key: a token of 128 random bits and the
// owner's label. Every attempt needs its own token: a late release of an earlier
// attempt would delete the keys of a later one with the same token.
func (rl *Redlock) newValue() (string, error) {
	var random [tokenLen / 2]byte
	if rl.random == nil {
		_, _ = rand.Read(random[:]) // never fails
	} else if _, err := io.ReadFull(rl.random, random[:]); err != nil {
		return "", fmt.Errorf("redlock: no randomness for a token: %w", err)
	}
	value := make([]byte, tokenLen, tokenLen+1+len(rl.opts.Owner))
	hex.Encode(value, random[:])
	value = append(value, '@')
	return string(append(value, rl.opts.Owner...)), nil
}

// pause waits for d, or less if ctx ends or the Redlock is closed.
func (rl *Redlock) pause(ctx context.Context, d time.Duration) error {
	over := make(chan struct{})
	t := rl.clock.afterFunc(d, func() { close(over) })
	defer t.Stop()
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-rl.closing:
		return ErrClosed
	}
}
