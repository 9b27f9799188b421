package protocol

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// ClientName is what a client's connections are called on the nodes, so that CLIENT LIST tells which list
// of nodes each client has: "redlock:", the client's id, how many nodes it has, digests of their addresses
// and of the prefix of its keys, and its owner, with colons between them.
type ClientName struct {
	ID    string // tells clients apart; it is no secret
	Nodes int
	// List is the same for the same addresses in any order. Scope is the same for the same KeyPrefix: what
	// has another shares no lock.
	List, Scope string
	Owner       string
}

// mostOfOwner is how many bytes of an owner are in a name: it is there for each connection.
const mostOfOwner = 64

// digest is short: it tells apart the few lists that meet on one node.
func digest(parts ...string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(strings.Join(parts, " ")))
	return fmt.Sprintf("%08x", h.Sum32())
}

// ListOf is the digest of a list of nodes. Where an address says nothing, as that of a client that follows
// a Sentinel, it is drawn, and so the list is like no other.
func ListOf(clients []*redis.Client) string {
	addrs := make([]string, len(clients))
	for i, c := range clients {
		o := c.Options()
		if _, _, err := net.SplitHostPort(o.Addr); err != nil {
			return drawn()
		}
		addrs[i] = strings.ToLower(o.Addr) + "/" + strconv.Itoa(o.DB)
	}
	slices.Sort(addrs)
	return digest(addrs...)
}

func drawn() string { return fmt.Sprintf("%08x", rand.Uint32()) }

// NewClientName is that of a client that is made now.
func NewClientName(clients []*redis.Client, prefix, owner string) ClientName {
	return ClientName{ID: drawn(), Nodes: len(clients), List: ListOf(clients), Scope: ScopeOf(prefix), Owner: owner}
}

// ScopeOf is the digest of a prefix of keys.
func ScopeOf(prefix string) string { return digest(prefix) }

// String is the name on the nodes, which take no spaces and nothing beyond ASCII.
func (n ClientName) String() string {
	owner := []byte(n.Owner[:min(len(n.Owner), mostOfOwner)])
	for i, b := range owner {
		if b <= ' ' || b > '~' {
			owner[i] = '_'
		}
	}
	return fmt.Sprintf("redlock:%s:%d:%s:%s:%s", n.ID, n.Nodes, n.List, n.Scope, owner)
}

// Only a check reads names, and not each program that has locks.
var clientName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^redlock:([0-9a-f]{8}):([1-9][0-9]{0,4}):([0-9a-f]{8}):([0-9a-f]{8}):([!-~]{0,64})$`)
})

// ReadClientName reads what String made. Any connection may be called so.
func ReadClientName(s string) (n ClientName, ok bool) {
	m := clientName().FindStringSubmatch(s)
	if m == nil {
		return n, false
	}
	nodes, _ := strconv.Atoi(m[2])
	return ClientName{m[1], nodes, m[3], m[4], m[5]}, true
}
