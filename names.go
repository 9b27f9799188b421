package redlock

import (
	"slices"
	"strings"
)

// naming is how the keys that go with a lock's key are named: its wait queue, its
// fencing counter, the list of those who share it and what keeps newcomers from that. They lie in the same cluster slot as the lock where that can be done.
// Redis takes the text between the first "{" and the next "}" for the tag that decides
// the slot. The suffixes differ, so the queues of "a" and "{a}" do too.
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

// holdersKey is the key of the list of those who share a lock.
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
