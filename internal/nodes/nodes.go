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
	"slices"
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

// CheckClients says what is wrong with the clients of nodes.
func CheckClients(clients []redis.UniversalClient) error {
	if err := checkNumber(len(clients), "clients"); err != nil {
		return err
	}
	var broken []string
	var duplicates []error
	ids := make([]redis.UniversalClient, len(clients))
	for i, c := range clients {
		if c == nil || reflect.ValueOf(c).Kind() == reflect.Pointer && reflect.ValueOf(c).IsNil() {
			broken = append(broken, fmt.Sprintf("clients[%d] is nil", i))
			continue
		}
		switch c.(type) {
		case *redis.Client, *redis.ClusterClient, *redis.Ring:
			if made := reflect.ValueOf(c).Elem(); made.IsZero() {
				broken = append(broken, fmt.Sprintf("clients[%d] is a zero %v: must be made by go-redis", i, made.Type()))
				continue
			}
		}
		if reflect.ValueOf(c).Comparable() {
			ids[i] = c
		}
	}
	for _, t := range guard.Duplicates(ids) {
		duplicates = append(duplicates, fmt.Errorf("redlock: %w: clients[%d] and clients[%d] are the same", guard.ErrDuplicateNode, t.First, t.Second))
	}
	return protocol.InOneLine(append(duplicates, protocol.Invalid("nodes", broken))...)
}

// Names are the names that were given, if any. Otherwise each node is named by its address
// and database, and names that occur twice get the node's index.
func Names(clients []redis.UniversalClient, given []string) []string {
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
