package redlock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"golang.org/x/sync/errgroup"
)

// Redlock holds the way to N independent Redis masters. It is made by Open or New, is
// safe for use by any number of goroutines, and is meant to be shared: one for each
// set of nodes in a process. On nil and on the zero value, methods that return an error
// return ErrInvalid, Close does nothing, and there are no nodes.
type Redlock struct {
	*nodeSet
	queues  *queues
	renewer *renewer

	// clients are the nodes', for what does not go by the lanes: Check.
	clients []redis.UniversalClient
	owned   []redis.UniversalClient

	closeOnce sync.Once
	closeErr  error
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
	// A client may connect as soon as it is made, and the guard that is told of it comes
	// with the rest.
	var rl *Redlock
	made := make(chan struct{})
	clients := make([]redis.UniversalClient, len(parsed))
	for i, p := range parsed {
		if o.RestartGuard >= 0 {
			p.OnConnect = onConnect(func(s sighting) {
				<-made
				rl.guard.saw(i, s)
			})
		}
		clients[i] = redis.NewClient(p)
	}
	rl = build(clients, true, o, newSystemClock())
	rl.owned = clients
	close(made)
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
	return build(slices.Clone(clients), false, o, newSystemClock()), nil
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

func build(clients []redis.UniversalClient, ours bool, o Options, clk clock) *Redlock {
	wires := make([]wire, len(clients))
	for i, c := range clients {
		wires[i] = newRedisWire(c, ours)
	}
	rl := assemble(nodeNames(clients), wires, o, clk)
	rl.clients = clients
	return rl
}

// assemble makes a Redlock of wires to nodes with these names.
func assemble(names []string, wires []wire, o Options, clk clock) *Redlock {
	set := newNodeSet(names, wires, o, clk)
	return &Redlock{nodeSet: set, queues: newQueues(set), renewer: newRenewer(clk)}
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
	for i, c := range rl.owned {
		group.Go(func() error {
			var err error
			ids[i], err = runID(asking, c)
			outcomes[i] = Outcome{
				Node: rl.names[i], Vote: VoteGranted, Err: withHint(err),
				Elapsed: rl.clock.now().since(start),
			}
			switch {
			case err != nil && isServerError(err):
				outcomes[i].Vote = VoteFailed
			case err != nil:
				outcomes[i].Vote = VoteNotSent
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
		return &QuorumError{Op: "open", Need: rl.quorum, Outcomes: outcomes, reasons: withContextErr(ctx, ErrNoQuorum)}
	}
}

// runID tells servers apart. It is empty where the server does not say, which is no
// reason not to use it.
func runID(ctx context.Context, c redis.UniversalClient) (string, error) {
	pipe := c.Pipeline()
	ping, info := pipe.Ping(ctx), pipe.Info(ctx, "server")
	_, failure := pipe.Exec(ctx)
	switch {
	case ping.Err() != nil && !strings.HasPrefix(ping.Err().Error(), "NOPERM"):
		return "", ping.Err()
	case ping.Err() == nil && ping.Val() == "":
		return "", failure // the greeting of the connection was refused
	}
	for line := range strings.Lines(info.Val()) {
		if id, ok := strings.CutPrefix(line, "run_id:"); ok {
			return strings.TrimSpace(id), nil
		}
	}
	return "", nil
}

// Quorum returns how many nodes must grant: more than half of them.
func (rl *Redlock) Quorum() int {
	if rl.check() != nil {
		return 0
	}
	return rl.quorum
}

// Nodes returns the nodes' names, address/database, in the order in which they were
// given. Equal ones have "#" and their index behind them.
func (rl *Redlock) Nodes() []string {
	if rl.check() != nil {
		return nil
	}
	return append([]string(nil), rl.names...)
}

// check returns why a Redlock cannot be used, or nil.
func (rl *Redlock) check() error {
	if rl == nil || rl.nodeSet == nil {
		return fmt.Errorf("redlock: %w Redlock: it was not made by Open or New", ErrInvalid)
	}
	return nil
}

// Mutex describes the lock of a key, which may be any bytes but not empty. It does no
// I/O. Options that break a rule are reported by the Mutex's methods, with ErrInvalid.
func (rl *Redlock) Mutex(key string, opts ...LockOption) *Mutex {
	if rl.check() != nil {
		return &Mutex{}
	}
	return newMutex(rl.nodeSet, rl.queues, rl.renewer, key, opts)
}

// Close ends every waiting Acquire with ErrClosed, sends the releases that are on
// their way, waiting for them no longer than the timeout per node, and closes the
// connections that Open made. Locks that are held are not released: their keys stay
// until their TTL ends, and are not renewed. Calls after Close return ErrClosed.
func (rl *Redlock) Close() error {
	if rl.check() != nil {
		return nil
	}
	rl.closeOnce.Do(func() { rl.closeErr = rl.close() })
	return rl.closeErr
}

func (rl *Redlock) close() error {
	close(rl.life.closing)
	rl.renewer.stop()
	over, stop := after(rl.clock, rl.opts.nodeTimeout(rl.opts.TTL))
	defer stop()

	if rl.life.busy.Load() > 0 {
		select {
		case <-rl.life.idle:
		case <-over:
		}
	}
	flushed := rl.queues.close()
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
