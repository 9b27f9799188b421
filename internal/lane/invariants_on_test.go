//go:build invariants || race

package lane

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/redlock/internal/protocol"
)

func batchOf(op protocol.Op, key, value string) *batch {
	return &batch{calls: []*Call{{Req: &protocol.Request{Op: op, Key: key, Value: value}}}}
}

func TestNoKeyIsInTwoBatches(t *testing.T) {
	f := flight{Out: []*batch{batchOf(protocol.OpAcquire, "a", "1")}}
	f.check(batchOf(protocol.OpRelease, "b", "1"))
	assert.PanicsWithValue(t, `bug: release of "a" goes to a node where another request of that key is out`, func() {
		f.check(batchOf(protocol.OpRelease, "a", "1"))
	})
}

func TestNoSetFollowsTheReleaseOfItsValue(t *testing.T) {
	for _, set := range []protocol.Op{protocol.OpAcquire, protocol.OpAcquireShared, protocol.OpAdopt, protocol.OpRepair} {
		f := new(flight)
		f.check(batchOf(set, "a", "1"))
		f.check(batchOf(protocol.OpRelease, "a", "1"))
		f.check(batchOf(protocol.OpRelease, "a", "1"))
		f.check(batchOf(protocol.OpExtend, "a", "1"))
		f.check(batchOf(set, "a", "2"))
		f.check(batchOf(protocol.OpRelease, "a", "")) // leaves the queue only
		f.check(batchOf(set, "a", ""))
		assert.PanicsWithValue(t, fmt.Sprintf(`bug: %v of "a" sends 1 to a node that was sent its release`, set), func() {
			f.check(batchOf(set, "a", "1"))
		})
	}
}

func TestReleasesAreRememberedForAWhile(t *testing.T) {
	f := new(flight)
	for i := range 3 * mostReleased {
		f.check(batchOf(protocol.OpRelease, "a", fmt.Sprint(i)))
	}
	assert.Len(t, f.freed.values, mostReleased)
	assert.NotPanics(t, func() { f.check(batchOf(protocol.OpAcquire, "a", "0")) })
	assert.Panics(t, func() { f.check(batchOf(protocol.OpAcquire, "a", fmt.Sprint(3*mostReleased-1))) })
}
