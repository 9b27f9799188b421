package redlock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"golang.org/x/sync/errgroup"
)

const (
	// openPatience bounds how long Open waits for a node.
	openPatience = time.Second
	// openPool is the size of the connection pools that Open makes. A lane needs only one
	// connection, but after as many failed dials as the pool is large, go-redis stops
	// dialing for a second.
	openPool = 64
)

// Open connects to the nodes. It returns when each has answered or has had a second to do
// so, or when ctx ends. Each address is "host:port", or a redis://, rediss:// (TLS) or
// unix:// URL, which may have a user, a password and a database number. Options.TLS has the
// certificates; rediss://host:port?skip_verify=true trusts any server.
//
// A minority of the nodes may be down; they are used as soon as they answer. Open fails with
// ErrNoQuorum if so many nodes are down or refuse to serve us that the others are no
// majority, with ErrDuplicateNode if the same server is given twice (the same address and
// database, or the same run id), with ErrInvalid for options or addresses that break a rule,
// and with ctx's error. Unless the restart guard is off, it leaves one small key on
// each node, the memory mark KeyPrefix+"redlock:memory". Redlock.Close closes the connections.
func Open(ctx context.Context, addrs []string, opts *Options) (*Redlock, error) {
	o, broken := opts.withDefaults()
	parsed, err := parseAddrs(addrs)
	if err := inOneLine(broken, err, brokenNames(o.Names, len(addrs))); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("redlock: open: %w", err)
	}
	for i, p := range parsed {
		secure(p, addrs[i], o.TLS)
	}
	clients, wires := make([]redis.UniversalClient, len(parsed)), make([]wire, len(parsed))
	clk := newSystemClock()
	for i, p := range parsed {
		side := sideClient(p)
		clients[i], wires[i] = side, newOwnWire(p, side, markKeyOf(&o), clk)
	}
	rl := assemble(nodeNames(clients, o.Names), wires, o, clk)
	rl.clients, rl.owned = clients, clients
	if err := rl.greet(ctx); err != nil {
		_ = rl.Close()
		return nil, err
	}
	return rl, nil
}

// New uses clients of the caller, with any settings. The caller still owns them, and closes
// them after the Redlock. Each client is one node: a *redis.Client, a Sentinel failover
// client, or a cluster or ring client, which counts as one node although it has many servers
// (the package documentation says what that is worth). New does no I/O.
//
// A client's hooks may look at commands, but should not send them again: a node's answer to
// an acquire that a hook sent twice counts as VoteUnknown, and what it may have set is taken
// back.
//
// It fails with ErrInvalid for options that break a rule, for no clients and for nil
// clients, and with ErrDuplicateNode if a client is given twice. Two clients that lead to the
// same server are noticed by its run id when both have answered, unless the restart guard is
// off. From then on only one of them has a vote, and operations that lack a quorum for that
// fail with ErrDuplicateNode.
func New(clients []redis.UniversalClient, opts *Options) (*Redlock, error) {
	o, broken := opts.withDefaults()
	if err := inOneLine(broken, checkClients(clients), brokenNames(o.Names, len(clients))); err != nil {
		return nil, err
	}
	return build(slices.Clone(clients), o, newSystemClock()), nil
}

// build makes a Redlock of a user's clients.
func build(clients []redis.UniversalClient, o Options, clk clock) *Redlock {
	wires := make([]wire, len(clients))
	for i, c := range clients {
		wires[i] = newRedisWire(c, markKeyOf(&o), clk)
	}
	rl := assemble(nodeNames(clients, o.Names), wires, o, clk)
	rl.clients, rl.users = clients, true
	return rl
}

func checkClients(clients []redis.UniversalClient) error {
	if len(clients) == 0 {
		return invalid("nodes", []string{"no clients: at least one is needed"})
	}
	var broken []string
	var duplicates []error
	ids := make([]redis.UniversalClient, len(clients))
	for i, c := range clients {
		if c == nil || reflect.ValueOf(c).Kind() == reflect.Pointer && reflect.ValueOf(c).IsNil() {
			broken = append(broken, fmt.Sprintf("client %d is nil", i))
			continue
		}
		if reflect.ValueOf(c).Comparable() {
			ids[i] = c
		}
	}
	for _, t := range twins(ids) {
		duplicates = append(duplicates, fmt.Errorf("redlock: %w: clients %d and %d are the same", ErrDuplicateNode, t.first, t.second))
	}
	return inOneLine(append(duplicates, invalid("nodes", broken))...)
}

// nodeNames are the names that were given, if any. Otherwise each node is named by its address
// and database, and names that occur twice get the node's index.
func nodeNames(clients []redis.UniversalClient, given []string) []string {
	if len(given) > 0 {
		return given
	}
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

// brokenNames is what is wrong with the names of so many nodes.
func brokenNames(names []string, nodes int) error {
	var broken []string
	if len(names) > 0 && len(names) != nodes {
		broken = append(broken, fmt.Sprintf("Names has %d names for %d nodes: must have one for each", len(names), nodes))
	}
	for i, name := range names {
		if name == "" || len(name) > maxName {
			broken = append(broken, fmt.Sprintf("name %d of Names is %d bytes long: must be from 1 to %d", i, len(name), maxName))
		}
	}
	for _, t := range twins(names) {
		broken = append(broken, fmt.Sprintf("names %d and %d of Names are both %s: must differ", t.first, t.second, quoteKey(names[t.first])))
	}
	return invalid("options", broken)
}

// parseAddrs reads all addresses, or reports all that are wrong. Its errors contain no
// password.
func parseAddrs(addrs []string) ([]*redis.Options, error) {
	if len(addrs) == 0 {
		return nil, invalid("nodes", []string{"no addresses: at least one is needed"})
	}
	var broken []string
	var duplicates []error
	ids := make([]string, len(addrs))
	parsed := make([]*redis.Options, len(addrs))
	for i, addr := range addrs {
		o, err := parseAddr(addr)
		if err != nil {
			broken = append(broken, fmt.Sprintf("address %d, %s", i, err))
			continue
		}
		parsed[i] = o
		ids[i] = fmt.Sprintf("%s %s/%d", o.Network, strings.ToLower(o.Addr), o.DB)
	}
	for _, t := range twins(ids) {
		o := parsed[t.second]
		duplicates = append(duplicates, fmt.Errorf("redlock: %w: addresses %d and %d are both %s/%d", ErrDuplicateNode, t.first, t.second, o.Addr, o.DB))
	}
	return parsed, inOneLine(append(duplicates, invalid("nodes", broken))...)
}

func parseAddr(addr string) (*redis.Options, error) {
	o := &redis.Options{Network: "tcp", Addr: addr}
	if strings.Contains(addr, "://") {
		var err error
		if o, err = redis.ParseURL(addr); err != nil {
			u, uerr := url.Parse(addr)
			if uerr != nil { // its text has the address, and so the password
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
		// Locks need nothing of RESP3, where go-redis looks for push messages before each
		// reply.
		o.Protocol = 2
	}
	if o.PoolSize == 0 {
		o.PoolSize = openPool
	}
	if o.DialTimeout == 0 {
		o.DialTimeout = openPatience
	}
	// One dial and one try: that a node is down must be known at once, and the library
	// decides itself what it sends again.
	o.MaxRetries, o.DialerRetries = -1, 1
	o.ContextTimeoutEnabled = true
	o.PipelinePoolSize = -1
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return o, nil
}

// secure makes the address speak TLS as the user wants. A URL says itself whether it does.
func secure(o *redis.Options, addr string, with *tls.Config) {
	if with == nil || strings.Contains(addr, "://") && o.TLSConfig == nil {
		return
	}
	url := o.TLSConfig
	o.TLSConfig = with.Clone()
	if url != nil {
		o.TLSConfig.InsecureSkipVerify = with.InsecureSkipVerify || url.InsecureSkipVerify
	}
}

// otherScheme adds a hint to what it looks like if one end speaks TLS and the other does not:
// a server without TLS waits for the rest of a command, and one with it hangs up.
func otherScheme(client redis.UniversalClient, err error) error {
	c, ok := client.(*redis.Client)
	switch {
	case !ok || err == nil || isServerError(err):
		return err
	case c.Options().TLSConfig != nil && isTimeout(err):
		return fmt.Errorf("%w; if it does not speak TLS, the URL begins with redis://, not rediss://", err)
	case c.Options().TLSConfig == nil && hungUp(err):
		return fmt.Errorf("%w; if it speaks TLS only, the URL begins with rediss://, not redis://", err)
	default:
		return err
	}
}

func hungUp(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF)
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errTimeout) || errors.As(err, &n) && n.Timeout()
}

// greet asks all nodes for their run ids. It fails if two nodes are the same server, or if
// no majority answers.
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
			ids[i], err = rl.lane(i).wire.(*redisWire).talk.(*conversations).greet(asking, openPatience)
			outcomes[i] = Outcome{
				Node: rl.names[i], Vote: VoteGranted, Err: otherScheme(rl.owned[i], withHint(err)),
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
	for _, t := range twins(ids) {
		duplicates = append(duplicates, sameServer(rl.names, t, ids[t.first]))
	}
	up := 0
	for _, o := range outcomes {
		if o.Vote == VoteGranted {
			up++
		}
	}
	switch {
	case duplicates != nil:
		return inOneLine(duplicates...)
	case up >= rl.quorum:
		return nil
	default:
		return &QuorumError{Op: "open", Need: rl.quorum, Outcomes: outcomes, reasons: withContextErr(ctx, ErrNoQuorum)}
	}
}
