package admin

import (
	"context"
	"fmt"

	"github.com/quorumlock/redlock/internal/protocol"
)

// Target says from which holder ForceRelease takes a lock: HeldBy or Anything.
type Target struct {
	token string
	any   bool
}

// HeldBy is the holder with a token: Status.Token, or that of one of Status.Holders, which then is
// the only one that is removed.
func HeldBy(token string) Target { return Target{token: token} }

// Anything is whichever holder there is, all of them, and whatever else the key holds.
func Anything() Target { return Target{any: true} }

// Taken is the result of ForceRelease, node by node.
type Taken struct {
	Key   string
	Nodes []TakenNode
}

// TakenNode is what became of the key on one node.
type TakenNode struct {
	Node string
	// Left is what is there now, as far as it is known.
	Left Left
	// Holder is the value of another holder, which was left alone.
	Holder string
	Err    error
}

// Left is what is under a key after a forced release.
type Left string

const (
	Deleted Left = "deleted" // nothing; the lock was there
	Nothing Left = "none"    // nothing, as before
	Kept    Left = "kept"    // another's lock, or what is no lock
	Unknown Left = "unknown" // the node did not answer
)

// ForceRelease takes a lock away on every node, for an operator who knows that its holder is gone. A
// holder that is still there learns of it at its next extend. Waiters in the queue are
// woken; fencing counters stay.
//
// It asks all nodes at once, each once, for Options.Timeout at most, and returns nil when a majority
// confirms that the key is gone and at least one of them had it. It fails with ErrNotHeld when there was
// nothing to take or another's token left no majority, with ErrNoQuorum when too few nodes answered, or with ctx's
// error: the key may be gone on some nodes then. A token that is empty or over 8192 bytes is ErrInvalid.
func (n *Nodes) ForceRelease(ctx context.Context, key string, from Target) (Taken, error) {
	name, err := n.name("force release", key)
	if err != nil {
		return Taken{}, err
	}
	if !from.any && (from.token == "" || len(from.token) > protocol.MaxKeyName) { // other libraries' tokens may be anything, but see there
		return Taken{}, fmt.Errorf("redlock: force release %s: %w token: it is %d bytes long: must be from 1 to %d",
			protocol.Quote(key), ErrInvalid, len(from.token), protocol.MaxKeyName)
	}
	if err := n.ended(ctx); err != nil {
		return Taken{}, fmt.Errorf("redlock: force release %s: %w", protocol.Quote(key), err)
	}
	clients, done := n.open()
	defer done()
	of := protocol.NamingOf(name)
	all, ended := n.ask(ctx, clients, func() *protocol.Request {
		return protocol.ForceRequest(&protocol.Terms{}, name, from.token, of.QueueKey(name), of.UnusualHolders(name))
	})
	t := Taken{Key: key}
	var counts protocol.Forced
	for i, a := range all {
		counts.Add(a.Answer)
		one := TakenNode{Node: n.names[i], Left: Unknown, Holder: a.Holder(), Err: a.Err()}
		switch {
		case a.Kind == protocol.Granted:
			one.Left = Deleted
		case a.Kind == protocol.Refused && one.Holder == "" && a.Err() == nil:
			one.Left = Nothing
		case a.Kind == protocol.Refused:
			one.Left = Kept
		}
		t.Nodes = append(t.Nodes, one)
	}
	if why := counts.Failed(len(all), ended); why != nil {
		return t, n.failed("force release", key, all, why)
	}
	return t, nil
}
