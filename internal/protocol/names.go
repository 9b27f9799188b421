package protocol

import (
	"fmt"
	"strings"
)

// Naming is how the keys that go with a lock's key are named: its wait queue, its fencing counter,
// the list of its sharers and what keeps newcomers from sharing. They lie in the same cluster slot as
// the lock where that can be done. Redis takes the text between the first "{" and the next "}" for
// the tag that decides the slot. The suffixes differ, so the queues of "a" and "{a}" do too.
type Naming uint8

const (
	NoQueueName Naming = iota // no second key can share the slot
	UsualNames                // scripts/line_release.lua, force.lua and inspect.lua know it, too
	taggedNames               // the key has a tag of its own
)

// NamingOf is that of a lock's key, with its prefix.
func NamingOf(key string) Naming {
	open := strings.IndexByte(key, '{')
	switch {
	case open >= 0 && strings.IndexByte(key[open+1:], '}') > 0:
		return taggedNames
	case strings.IndexByte(key, '}') >= 0:
		return NoQueueName
	default:
		return UsualNames
	}
}

// QueueKey is the key of a lock's wait queue, or empty if it can have none.
func (n Naming) QueueKey(key string) string {
	switch n {
	case taggedNames:
		return key + ":line:"
	case UsualNames:
		return "{" + key + "}:line"
	default:
		return ""
	}
}

// HoldersKey is the key of the list of a lock's sharers.
func (n Naming) HoldersKey(key string) string {
	if n == UsualNames {
		return "{" + key + "}:shared"
	}
	return key + ":shared:"
}

// DoorKey is the key that keeps newcomers from sharing a lock.
func (n Naming) DoorKey(key string) string {
	if n == UsualNames {
		return "{" + key + "}:door"
	}
	return key + ":door:"
}

// FenceKey is the key of a lock's fencing counter.
func (n Naming) FenceKey(key string) string {
	if n == UsualNames {
		return "{" + key + "}:fence"
	}
	return key + ":fence:"
}

// UnusualHolders is HoldersKey where scripts do not know that name by themselves; empty otherwise.
func (n Naming) UnusualHolders(key string) string {
	if n == UsualNames {
		return ""
	}
	return n.HoldersKey(key)
}

// besides are the keys that go with a lock's, the queue first, by how their names end.
var besides = []struct {
	usual, other string
	of           func(Naming, string) string
	what         string // with the lock's key
}{
	{"}:line", ":line:", Naming.QueueKey, "the wait queue of %s"},
	{"}:shared", ":shared:", Naming.HoldersKey, "the list of those who share %s"},
	{"}:door", ":door:", Naming.DoorKey, "the key that keeps newcomers from sharing %s"},
	{"}:fence", ":fence:", Naming.FenceKey, "the fencing counter of %s"},
}

// ours says what this library does with a name on the nodes; empty if it is free for a lock.
// It is the one place that knows. A lock of such a name, and what is kept there, would delete,
// bar or outlive each other.
func ours(name string) string {
	if strings.HasSuffix(name, MarkKey) { // behind whatever prefix: other clients may have another
		return "the memory mark is kept"
	}
	if strings.HasSuffix(name, TrialKey) { // likewise
		return "a lock's commands are tried"
	}
	if key, i := besidesOf(name); i >= 0 {
		return fmt.Sprintf(besides[i].what, Quote(key)) + " is kept"
	}
	return ""
}

// besidesOf is the key of the lock that a name goes with, and which of besides it is; -1: none.
func besidesOf(name string) (key string, which int) {
	for i, b := range besides {
		key, ok := strings.CutSuffix(name, b.other)
		if !ok && strings.HasPrefix(name, "{") {
			key, ok = strings.CutSuffix(name[1:], b.usual)
		}
		if ok && key != "" && b.of(NamingOf(key), key) == name {
			return key, i
		}
	}
	return name, -1
}

// LockOf is the key of the lock that something on a node goes with by its name, with the prefix, and
// whether it is the lock's own, or that of its wait queue. A name that goes with no key that a lock
// can have, such as "x:line:", is a lock's own.
func LockOf(name string) (key string, lock, queue bool) {
	key, which := besidesOf(name)
	return key, which < 0, which == 0
}

// BrokenName is what is wrong with a lock's key, or with its name on the nodes.
func BrokenName(key, prefix string) (broken []string) {
	if key == "" {
		return []string{"the key is empty: must be at least one byte"}
	}
	name := prefix + key
	if len(name) > MaxKeyName {
		return []string{fmt.Sprintf("the key is %d bytes long, with Options.KeyPrefix: must be at most %d", len(name), MaxKeyName)}
	}
	if what := ours(name); what != "" {
		return []string{fmt.Sprintf("%s is where %s on the nodes: must be another key", Quote(name), what)}
	}
	return nil
}

// MaxKeyName is the longest name of a lock's key on the nodes, in bytes. A path of a file has up to
// 4096, and web servers accept addresses of about this length. A request names up to four keys
// that are made of it, so 32 KB: a third of a millisecond at 1 Gbit/s, which is less than the
// least NodeTimeout. A key of a megabyte would time out on each node as if that were away.
const MaxKeyName = 8192
