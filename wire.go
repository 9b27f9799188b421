package redlock

import (
	"context"
	"math/bits"
	"time"
)

// wire puts requests on the wire; it is the part of a lane that a simulation replaces.
//
// exchange sends the requests of the batch in order over one connection, each of them
// once and never again, and fills in the ballot of each: val, err and sent. It returns
// when all replies were read or the connection broke, and waits for a reply no longer
// than bound. After patience nobody waits for the replies any more, and it may look
// whether the node still answers others. Settled: nothing of the batch may take effect any
// more that did not. It must not look at anything but req of a call, nor keep the slice.
// On a long link several exchanges run at the same time.
type wire interface {
	exchange(batch []*call, patience, bound time.Duration) (settled bool)
}

// watcher is a wire that tells who answers, before their answers are read. A node whose
// wire never tells is not guarded.
type watcher interface {
	// watch is called before the wire is used.
	watch(onlooker)
}

// onlooker is told by a wire who answers.
type onlooker struct {
	// saw is told before any vote that came over the same connection is delivered. It
	// returns what is to be written over that connection, see guard. Nil: nobody wants to
	// know who answers.
	saw func(sighting) *markWrite
	// ready is false where the whole question has to be asked ahead of the next SET. It is
	// nil if saw is.
	ready func() bool
	// lacks is told what the node denies; never nil.
	lacks func(what string, err error)
}

// listener is a wire that can tell of messages on a channel.
type listener interface {
	// listen returns when the subscription breaks or ctx ends. It tells when the server
	// confirmed it, and of each message.
	listen(ctx context.Context, channel string, confirmed func(), heard func(message string)) error
}

const (
	// mostOut is how many exchanges run at a time on a long link.
	mostOut = 4
	// longestRead bounds how long a batch that is not answered keeps its connection.
	longestRead = 30 * time.Second
)

// coarsely rounds up by an eighth or less, so that there are only a few values.
func coarsely(d time.Duration) time.Duration {
	if coarse := time.Duration(1) << max(bits.Len64(uint64(d))-4, 0); d < longestRead {
		d = min((d+coarse-1)/coarse*coarse, longestRead)
	}
	return d
}
