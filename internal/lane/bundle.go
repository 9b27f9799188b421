package lane

import (
	"hash/maphash"
	"math/bits"

	"github.com/quorumlock/redlock/internal/protocol"
)

// Bundle has the releases of a batch sent in one command, since to call a script costs a server more
// than what a release does: see scripts/release_many.lua. To the lane they are calls like all
// others, each with an answer of its own. Those of which the command did nothing are sent again, each
// by itself, and the next batch begins with them, so that nothing overtakes them.
//
// Only releases whose key no other call of the batch has are in it. So it does not matter when in
// the batch they are done, and the order for each key is as if they were sent one by one.
//
// It belongs to one connection, and serves one batch at a time.
type Bundle struct {
	calls []*Call // in the order of the request
	of    protocol.Bundle
	out   []*Call // the batch as it goes out
	many  Call
	whole bool // the server does not know the script

	table []uint16 // of Pack: places in the batch, from 1 on, by the hash of the key
	twice []bool   // by place: another call has the same key
}

// fewest is how many releases it takes: one goes as it is.
const fewest = 2

var bundleSeed = maphash.MakeSeed()

// Pack returns the calls that are to be exchanged in place of the batch. Unpack comes after that.
func (b *Bundle) Pack(batch []*Call) []*Call {
	n := 0
	for _, c := range batch {
		if c.Req.MayBeBundled() {
			n++
		}
	}
	if n < fewest {
		return batch
	}
	b.findTwice(batch)
	b.out = append(b.out[:0], &b.many)
	for i, c := range batch {
		switch {
		case !c.Req.MayBeBundled() || b.twice[i]:
			b.out = append(b.out, c)
		case c.Req.LooksForWaiters():
			b.calls = append(b.calls, c)
		}
	}
	for i, c := range batch {
		if c.Req.MayBeBundled() && !b.twice[i] && !c.Req.LooksForWaiters() {
			b.calls = append(b.calls, c)
		}
	}
	if len(b.calls) < fewest {
		b.forget()
		return batch
	}
	for _, c := range b.calls {
		b.of.Of = append(b.of.Of, c.Req)
	}
	b.many = Call{Req: b.of.Request()}
	if b.whole {
		b.many.Req = b.many.Req.WithSource()
	}
	return b.out
}

// findTwice finds the calls whose keys others have, too.
func (b *Bundle) findTwice(batch []*Call) {
	size := 1 << bits.Len(uint(2*len(batch)))
	if cap(b.table) < size {
		b.table, b.twice = make([]uint16, size), make([]bool, size)
	}
	table := b.table[:size]
	b.twice = b.twice[:len(batch)]
	clear(table)
	clear(b.twice)
	for i, c := range batch {
		at := maphash.String(bundleSeed, c.Req.Key) % uint64(size)
		for table[at] != 0 && batch[table[at]-1].Req.Key != c.Req.Key {
			at = (at + 1) % uint64(size)
		}
		if before := table[at]; before != 0 {
			b.twice[before-1], b.twice[i] = true, true
		} else {
			table[at] = uint16(i + 1)
		}
	}
}

// Unpack gives the releases of a bundle their answers. never: this server will always
// refuse bundles; do not send another.
func (b *Bundle) Unpack() (never bool) {
	if len(b.calls) == 0 {
		return false
	}
	each, others := b.many.EachOf(len(b.calls))
	for _, c := range b.calls {
		c.Answer = each
	}
	for _, place := range others {
		b.calls[place.(int64)-1].Answer = protocol.Answer{Sent: true, Alone: true}
	}
	b.whole = b.many.WantsSource() || b.whole && b.many.Err() != nil
	b.forget()
	return protocol.NeverBundled(each.Err())
}

// forget lets go of what belongs to locks, which end before the connection does.
func (b *Bundle) forget() {
	clear(b.calls)
	clear(b.of.Of)
	clear(b.out)
	b.calls, b.of, b.out, b.many = b.calls[:0], protocol.Bundle{Of: b.of.Of[:0]}, b.out[:0], Call{}
}
