// Package nodes reads what users give as nodes: addresses, clients of go-redis, and names. It does no
// I/O, and its errors contain no password.
package nodes

import (
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock/internal/guard"
	"github.com/quorumlock/redlock/internal/protocol"
)

// maxName is the longest name of a node, in bytes.
const maxName = 256

// mostNodes is how many a tally can count.
const mostNodes = math.MaxInt16

func checkNumber(n int, of string) error {
	switch {
	case n == 0:
		return protocol.Invalid("nodes", []string{"no " + of + ": at least one is needed"})
	case n > mostNodes:
		return protocol.Invalid("nodes", []string{fmt.Sprintf("%d %s: must be at most %d", n, of, mostNodes)})
	}
	return nil
}

// Clients are those that were given, if each leads to one server at a time: of what it is to know which server
// answered, the library opens the connections itself.
func Clients(given []redis.UniversalClient) ([]*redis.Client, error) {
	if err := checkNumber(len(given), "clients"); err != nil {
		return nil, err
	}
	var broken []string
	var duplicates []error
	clients := make([]*redis.Client, len(given))
	for i, c := range given {
		if wrong := wrongClient(c); wrong != "" {
			broken = append(broken, fmt.Sprintf("clients[%d] is %s", i, wrong))
			continue
		}
		clients[i] = c.(*redis.Client)
	}
	for _, t := range guard.Duplicates(clients) {
		duplicates = append(duplicates, fmt.Errorf("redlock: %w: clients[%d] and clients[%d] are the same", guard.ErrDuplicateNode, t.First, t.Second))
	}
	return clients, protocol.InOneLine(append(duplicates, protocol.Invalid("nodes", broken))...)
}

// wrongClient is what c is, and what is to be in its place; empty if it can be a node.
func wrongClient(c redis.UniversalClient) string {
	if c == nil || reflect.ValueOf(c).Kind() == reflect.Pointer && reflect.ValueOf(c).IsNil() {
		return "nil"
	}
	switch c := c.(type) {
	case *redis.Client:
		if reflect.ValueOf(c).Elem().IsZero() {
			return "a zero redis.Client: must be made by go-redis"
		}
		return ""
	case *redis.ClusterClient:
		return "a *redis.ClusterClient: must be a *redis.Client of one master; a quorum needs one each of independent servers, " +
			"not a cluster (NewUniversalClient makes one of a single address in Addrs, without IsClusterMode)"
	case *redis.Ring:
		return "a *redis.Ring: must be a *redis.Client of one master; give one for each of the ring's servers"
	default:
		return fmt.Sprintf("a %T: must be a *redis.Client, since the library opens connections of its own with its options; give the one in it", c)
	}
}

// Names are the names that were given, if any. Otherwise each node is named by its address
// and database, and names that occur twice get the node's index.
func Names(clients []*redis.Client, given []string) []string {
	if len(given) > 0 {
		return given
	}
	names := make([]string, len(clients))
	count := make(map[string]int)
	for i, c := range clients {
		names[i] = c.Options().Addr + "/" + strconv.Itoa(c.Options().DB)
		count[names[i]]++
	}
	for i, name := range names {
		if count[name] > 1 {
			names[i] = fmt.Sprintf("%s#%d", name, i)
		}
	}
	return names
}

// CheckNames says what is wrong with the names of so many nodes.
func CheckNames(names []string, nodes int) error {
	var broken []string
	if len(names) > 0 && len(names) != nodes {
		broken = append(broken, fmt.Sprintf("NodeNames has %d names for %d nodes: must have one for each", len(names), nodes))
	}
	for i, name := range names {
		if name == "" || len(name) > maxName {
			broken = append(broken, fmt.Sprintf("name %d of NodeNames is %d bytes long: must be from 1 to %d", i, len(name), maxName))
		} else if !utf8.ValidString(name) {
			broken = append(broken, fmt.Sprintf("name %d of NodeNames is no UTF-8: %s", i, protocol.Quote(name)))
		}
	}
	for _, t := range guard.Duplicates(names) {
		broken = append(broken, fmt.Sprintf("names %d and %d of NodeNames are both %s: must differ", t.First, t.Second, protocol.Quote(names[t.First])))
	}
	return protocol.Invalid("options", broken)
}

// Parse reads all addresses, or reports all that are wrong. Its errors contain no
// password.
func Parse(addrs []string, patience time.Duration) ([]*redis.Options, error) {
	if err := checkNumber(len(addrs), "addresses"); err != nil {
		return nil, err
	}
	var broken []string
	var duplicates []error
	ids := make([]string, len(addrs))
	parsed := make([]*redis.Options, len(addrs))
	for i, addr := range addrs {
		o, err := parseAddr(addr, patience)
		if err != nil {
			broken = append(broken, fmt.Sprintf("addrs[%d], %s", i, err))
			continue
		}
		parsed[i] = o
		ids[i] = fmt.Sprintf("%s %s/%d", o.Network, strings.ToLower(o.Addr), o.DB)
	}
	for _, t := range guard.Duplicates(ids) {
		o := parsed[t.Second]
		duplicates = append(duplicates, fmt.Errorf("redlock: %w: addrs[%d] and addrs[%d] are both %s/%d", guard.ErrDuplicateNode, t.First, t.Second, o.Addr, o.DB))
	}
	return parsed, protocol.InOneLine(append(duplicates, protocol.Invalid("nodes", broken))...)
}

func parseAddr(addr string, patience time.Duration) (*redis.Options, error) {
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
	if o.DialTimeout == 0 {
		o.DialTimeout = patience
	}
	o.MinIdleConns, o.DisableIdentity = 0, true
	return o, nil
}

// Secure makes the address speak TLS as the user wants. A URL says itself whether it does.
func Secure(o *redis.Options, addr string, with *tls.Config) {
	if with == nil || strings.Contains(addr, "://") && o.TLSConfig == nil {
		return
	}
	url := o.TLSConfig
	o.TLSConfig = with.Clone()
	if url != nil {
		o.TLSConfig.InsecureSkipVerify = with.InsecureSkipVerify || url.InsecureSkipVerify
	}
}
