package redlock

import (
	"fmt"
	"slices"
	"strings"

	"github.com/quorumlock/redlock/internal/protocol"
)

// naming is how the keys that go with a lock's key are named: its wait queue, its fencing counter,
// the list of its sharers and what keeps newcomers from sharing. They lie in the same cluster slot as
// the lock where that can be done. Redis takes the text between the first "{" and the next "}" for
// the tag that decides the slot. The suffixes differ, so the queues of "a" and "{a}" do too.
type naming uint8

const (
	noQueueName naming = iota // no second key can share the slot
	usualNames                // scripts/line_release.lua, force.lua and inspect.lua know it, too
	taggedNames               // the key has a tag of its own
)

func namingOf(key string) naming {
	open := strings.IndexByte(key, '{')
	switch {
	case open >= 0 && strings.IndexByte(key[open+1:], '}') > 0:
		return taggedNames
	case strings.IndexByte(key, '}') >= 0:
		return noQueueName
	default:
		return usualNames
	}
}

// queueKey is the key of a lock's wait queue, or empty if it can have none.
func (n naming) queueKey(key string) string {
	switch n {
	case taggedNames:
		return key + ":line:"
	case usualNames:
		return "{" + key + "}:line"
	default:
		return ""
	}
}

// holdersKey is the key of the list of a lock's sharers.
func (n naming) holdersKey(key string) string {
	if n == usualNames {
		return "{" + key + "}:shared"
	}
	return key + ":shared:"
}

// doorKey is the key that keeps newcomers from sharing a lock.
func (n naming) doorKey(key string) string {
	if n == usualNames {
		return "{" + key + "}:door"
	}
	return key + ":door:"
}

// fenceKey is the key of a lock's fencing counter.
func (n naming) fenceKey(key string) string {
	if n == usualNames {
		return "{" + key + "}:fence"
	}
	return key + ":fence:"
}

// besides are the keys that go with a lock's, by how their names end.
var besides = []struct {
	usual, other string
	of           func(naming, string) string
	what         string // with the lock's key
}{
	{"}:line", ":line:", naming.queueKey, "the wait queue of %s"},
	{"}:shared", ":shared:", naming.holdersKey, "the list of those who share %s"},
	{"}:door", ":door:", naming.doorKey, "the key that keeps newcomers from sharing %s"},
	{"}:fence", ":fence:", naming.fenceKey, "the fencing counter of %s"},
}

// ours says what this library keeps under a name on the nodes; empty if it is free for a lock.
// It is the one place that knows. A lock of such a name, and what is kept there, would delete,
// bar or outlive each other.
func ours(name string) string {
	if strings.HasSuffix(name, protocol.MarkKey) { // behind whatever prefix: other clients may have another
		return "the memory mark"
	}
	for _, b := range besides {
		key, ok := strings.CutSuffix(name, b.other)
		if !ok && strings.HasPrefix(name, "{") {
			key, ok = strings.CutSuffix(name[1:], b.usual)
		}
		if ok && key != "" && b.of(namingOf(key), key) == name {
			return fmt.Sprintf(b.what, quoteKey(key))
		}
	}
	return ""
}

// brokenName is what is wrong with a lock's key, or with its name on the nodes.
func brokenName(key, prefix string) (broken []string) {
	if key == "" {
		return []string{"the key is empty: must be at least one byte"}
	}
	name := prefix + key
	if len(name) > maxKeyName {
		return []string{fmt.Sprintf("the key is %d bytes long, with Options.KeyPrefix: must be at most %d", len(name), maxKeyName)}
	}
	if what := ours(name); what != "" {
		return []string{fmt.Sprintf("%s is where %s is kept on the nodes: must be another key", quoteKey(name), what)}
	}
	return nil
}

// weight orders the nodes that may keep the wait queue of a key: the highest is the
// arbiter. All clients and all versions must agree on it. Rendezvous hashing spreads the
// queues evenly and moves only those of a node that is gone.
func weight(key, node uint64) uint64 {
	x := key + node
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// fnv1a is the 64 bit FNV-1a hash.
func fnv1a(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// byWeight is the nodes' indexes, the arbiter of the key first.
func byWeight(key uint64, nodes []uint64) []int {
	order := make([]int, len(nodes))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		if weight(key, nodes[a]) > weight(key, nodes[b]) {
			return -1
		}
		return 1
	})
	return order
}
