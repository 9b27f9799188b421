package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/quorumlock/redlock"
)

const (
	// listBatch is how many keys a SCAN looks at: few enough that no lock waits for it.
	listBatch = 500
	// listPatience bounds the whole of it: a node with millions of other keys takes long.
	listPatience = 30 * time.Second
	// listValue is how much of a value is read; locks have no more.
	listValue = 512
)

// lockValue is what this library stores under the key of a lock: a token and an owner.
var lockValue = regexp.MustCompile(`^[0-9a-f]{32}@`)

func isLock(value string) bool { return lockValue.MatchString(value) || value == sharedMarker }

type listFlags struct {
	prefix string
	limit  int
	all    bool
	json   bool
}

// listed is a lock, or what is left of one.
type listed struct {
	Key   string  `json:"key"`
	Held  bool    `json:"held"` // by a majority
	Token string  `json:"token"`
	Owner string  `json:"owner"`
	TTL   float64 `json:"ttl_seconds"` // how long a majority lasts, or the longest without one; -1: no end
	Nodes int     `json:"nodes"`       // that have it
	// Shared: several hold it together. Holders are missing if the nodes could not be asked.
	Shared  bool         `json:"shared,omitempty"`
	Holders []holderJSON `json:"holders,omitempty"`
}

// listJSON is what --json prints.
type listJSON struct {
	Locks  []listed   `json:"locks"`
	Nodes  []listNode `json:"nodes"`
	Quorum int        `json:"quorum"`
	More   bool       `json:"more"` // there may be locks that are not listed
	Error  string     `json:"error,omitempty"`
}

type listNode struct {
	Node  string `json:"node"`
	Keys  int    `json:"keys"` // that look like locks
	Whole bool   `json:"whole"`
	// Denied is how many keys the user may not read. There may be locks among them.
	Denied int    `json:"denied,omitempty"`
	Error  string `json:"error,omitempty"`
}

func listCommand() *cobra.Command {
	var f listFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the locks that are held, their holders and the time left",
		Long: `List the locks that are held, their holders, the time left, and how many nodes have them.

The nodes do not know which locks there are: each is searched with SCAN, a few hundred
keys at a time, which does not stop it. On a node with millions of other keys that takes
long; after 30 s, or --limit locks on a node, it shows what it found and says so. What
looks like a lock of this library counts as one: a string that begins with a token, or the
mark of a lock that several hold together.
Nothing is changed. A lock that comes or goes meanwhile may be missing.

Exit status: 0 if a majority of nodes was searched, also if the search was cut short; 1 if
not; 2 for a fault in the command line.`,
		Example: "  redlock list\n  redlock list --prefix orders:\n  redlock list --json | jq -r '.locks[].key'",
		Args:    noArgs, ValidArgsFunction: cobra.NoFileCompletions,
	}
	s := connectFlags(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.prefix, "prefix", "", "only keys that begin so, behind the key_prefix of --config")
	fl.IntVar(&f.limit, "limit", 1000, "search a node until this many locks are found, from 1 to 100000")
	fl.BoolVar(&f.all, "all", false, "also keys that no majority has: of attempts under way, or left behind")
	fl.BoolVar(&f.json, "json", false, "one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.limit < 1 || f.limit > 100000 {
			return &usageError{fmt.Errorf("--limit is %d: must be from 1 to 100000", f.limit)}
		}
		return runList(cmd, s, f)
	}
	return cmd
}

func runList(cmd *cobra.Command, s settings, f listFlags) error {
	addrs, c, err := s.nodes()
	if err != nil {
		return &usageError{err}
	}
	// It looks at the addresses and at whom they lead to.
	rl, disconnect, err := s.operate(cmd.Context(), redlock.Options{ReadOnly: true})
	if err != nil {
		return failure(cmd, f.json, "", err)
	}
	defer disconnect()
	clients, names, err := clientsOf(addrs, c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), listPatience)
	defer cancel()
	found := make([]search, len(clients))
	var all sync.WaitGroup
	for i, client := range clients {
		all.Go(func() {
			defer client.Close()
			found[i] = search{node: names[i], keys: make(map[string]seenKey)}
			found[i].run(ctx, client, c.KeyPrefix, f)
		})
	}
	all.Wait()
	if err := cmd.Context().Err(); err != nil {
		return err
	}
	for i := range found {
		found[i].err = hinted(found[i].err, s.hints[names[i]], clients[i].Options().TLSConfig)
	}
	out := join(found, len(c.KeyPrefix), f)
	out.nameSharers(ctx, rl)
	searched := 0
	for _, n := range out.Nodes {
		if n.Error == "" || n.Keys > 0 {
			searched++
		}
	}
	if searched < out.Quorum {
		err = fmt.Errorf("%w: %s, %d needed", redlock.ErrNoQuorum, nodesThat(searched, len(names), "could be searched", "could be searched"), out.Quorum)
		out.Error = err.Error()
	}
	if f.json {
		_ = json.NewEncoder(cmd.OutOrStdout()).Encode(out)
	} else {
		out.print(cmd.OutOrStdout())
	}
	return err
}

// hinted is why a node could not be searched, with what Open said of it, if it said more. A server
// that wants a certificate may hang up on each connection in another way.
func hinted(err, hint error, with *tls.Config) error {
	switch {
	case err == nil:
		return nil
	case hint != nil:
		return hint
	case with != nil && len(with.Certificates) == 0 && (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF)):
		return fmt.Errorf("%w; if it wants a certificate of its clients, give it one with --tls-cert and --tls-key", err)
	default:
		return err
	}
}

// seenKey is a lock's key on one node.
type seenKey struct {
	value string
	ttl   time.Duration // negative: no end
}

// search is that of one node.
type search struct {
	node  string
	keys  map[string]seenKey
	whole bool
	// denied is how many keys the user may not read.
	denied int
	err    error
}

func (s *search) run(ctx context.Context, client *redis.Client, prefix string, f listFlags) {
	pattern := quoteGlob(prefix+f.prefix) + "*"
	for cursor := uint64(0); ; {
		keys, next, err := client.ScanType(ctx, cursor, pattern, listBatch, "string").Result()
		if err == nil {
			err = s.read(ctx, client, keys)
		}
		if err != nil {
			if s.err = err; ctx.Err() != nil {
				s.err = nil // the time is up, which whole says
			}
			return
		}
		if cursor = next; cursor == 0 {
			s.whole = true
			return
		}
		if len(s.keys) >= f.limit {
			return
		}
	}
}

// read looks at what is under the keys.
func (s *search) read(ctx context.Context, client *redis.Client, keys []string) error {
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
		if _, what := lockOfName(k); what == aDoor {
			continue
		}
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

// join puts together what the nodes have: locks that end first, first.
func join(found []search, prefix int, f listFlags) *listJSON {
	out := &listJSON{Locks: []listed{}, Nodes: []listNode{}, Quorum: len(found)/2 + 1}
	leases := make(map[string]map[string][]time.Duration) // by key and value
	for _, s := range found {
		n := listNode{Node: s.node, Keys: len(s.keys), Whole: s.whole, Denied: s.denied}
		if s.err != nil {
			n.Error = inPlain(s.err)
		} else if !s.whole {
			out.More = true
		}
		out.Nodes = append(out.Nodes, n)
		for k, v := range s.keys {
			if leases[k] == nil {
				leases[k] = make(map[string][]time.Duration)
			}
			leases[k][v.value] = append(leases[k][v.value], v.ttl)
		}
	}
	for k, values := range leases {
		for v, ttls := range values {
			l := listed{Key: k[prefix:], Nodes: len(ttls), Held: len(ttls) >= out.Quorum}
			if !l.Held && !f.all {
				continue
			}
			if l.Shared = v == sharedMarker; !l.Shared {
				l.Token, l.Owner, _ = strings.Cut(v, "@")
			}
			if l.TTL = lasting(ttls, out.Quorum).Seconds(); l.TTL < 0 {
				l.TTL = -1
			}
			out.Locks = append(out.Locks, l)
		}
	}
	slices.SortFunc(out.Locks, func(a, b listed) int { return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(b.Nodes, a.Nodes)) })
	return out
}

// nameSharers asks who holds the shared locks, which their keys do not say.
func (l *listJSON) nameSharers(ctx context.Context, rl *redlock.Redlock) {
	for i, x := range l.Locks {
		if !x.Shared || ctx.Err() != nil {
			continue
		}
		if s, err := rl.Mutex(x.Key).Inspect(ctx); err == nil {
			l.Locks[i].Holders = holdersJSON(s.Holders)
		}
	}
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

func (l *listJSON) print(w io.Writer) {
	paint := paletteFor(w)
	t := table{heading: []string{"KEY", "HOLDER", "TOKEN", "LEASE", "NODES"}, spare: []int{2}, bad: func(i int) bool { return !l.Locks[i].Held }}
	for _, x := range l.Locks {
		lease := time.Duration(x.TTL * float64(time.Second)).Round(100 * time.Millisecond)
		holder, token := cut(x.Owner, 24), shortToken(x.Token)
		if x.Shared {
			holder, token = sharers(x.Holders), "-"
		}
		t.rows = append(t.rows, []string{x.Key, holder, token, leaseOf(lease), fmt.Sprintf("%d/%d", x.Nodes, len(l.Nodes))})
	}
	if len(t.rows) > 0 {
		t.print(w, paint)
	}
	switch n := len(t.rows); {
	case n == 0 && l.Error != "": // nobody knows
	case n == 0:
		fmt.Fprintln(w, "no locks")
	case n == 1:
		fmt.Fprintln(w, "1 lock")
	default:
		fmt.Fprintf(w, "%d locks\n", n)
	}
	for _, n := range l.Nodes {
		if n.Error != "" {
			fmt.Fprint(w, paint.bad(paragraph(w, printable(n.Node+": "+n.Error))))
		}
		if n.Denied > 0 {
			fmt.Fprint(w, paint.odd(paragraph(w, fmt.Sprintf("%s: this user may not read %d of the keys; --prefix leaves them out", printable(n.Node), n.Denied))))
		}
	}
	if l.More {
		fmt.Fprint(w, paragraph(w, "There may be more: not every node was searched to the end. --prefix narrows the search, --limit widens it."))
	}
}
