package lane

import (
	"context"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
)

// Wire puts requests on the wire; it is the part of a lane that a simulation replaces.
//
// Exchange sends the requests of the batch in order over one connection, each of them
// once and never again, and fills in Said and Sent of each. It returns when all replies
// were read or the connection broke, and waits for a reply no longer than bound. After patience
// the callers have given up, and it may look whether the node still answers others. It reads nothing
// of a call but Req, and does not keep the slice. On a long link several exchanges run at the same time.
type Wire interface {
	Exchange(batch []*Call, patience, bound time.Duration)
}

// Watcher is a wire that tells which server answers, before its answers are read. A node whose
// wire never tells is not guarded.
type Watcher interface {
	// Watch is called before the wire is used.
	Watch(Onlooker)
}

// Onlooker is told by a wire which server answers.
type Onlooker struct {
	// Saw is told before any vote that came over the same connection is delivered. It
	// returns what is to be written over that connection, see guard. Nil: there is no guard.
	Saw func(protocol.ServerReport) *protocol.MarkWrite
	// Ready is false where the whole question has to be asked ahead of the next SET. It is
	// nil if Saw is.
	Ready func() bool
	// Duplicate is why nothing is to be sent over a connection to the server that reported last; nil if it is to
	// be. It is nil if Saw is.
	Duplicate func() error
}

// Mender is a wire to a node for whose errors remedies are at hand. Remedies does not change.
type Mender interface{ Remedies() protocol.Remedies }

// Listener is a wire that can tell of messages on a channel.
type Listener interface {
	// Listen returns when the subscription breaks or ctx ends.
	Listen(ctx context.Context, channel string, tell Subscriber) error
}

// Subscriber is told of a subscription. None of its functions is nil.
type Subscriber struct {
	Confirmed func()               // by the server
	Denied    func(err error)      // the server does not let us publish there, and probably no other client
	Heard     func(message string) // each one
}

const (
	// MostOut is how many exchanges run at a time on a long link.
	MostOut = 4
	// LongestRead bounds how long a batch that is not answered keeps its connection.
	LongestRead = 30 * time.Second
)
