package lane_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/fakenode"
)

// A node that keeps a queue has to give the turn to somebody, which the server's own command
// does not do.
func TestOnlyPlainReleasesAreNative(t *testing.T) {
	t.Parallel()
	terms := &protocol.Terms{TTL: time.Minute}
	plain, queue := protocol.ReleaseRequest(terms, "k", "a"), protocol.QueueReleaseRequest(terms, "k", "a", nil)
	assert.True(t, plain.MayBeNative())
	assert.False(t, queue.MayBeNative(), "somebody may wait there")
	assert.False(t, plain.WithSource().MayBeNative(), "the server has just asked for the script")
	assert.False(t, protocol.ExtendRequest(terms, "k", "a").MayBeNative())
}

// What the server's own command did not do, the script does, or says why not.
func TestWhatANativeReleaseDidNotDoIsLeftToTheScript(t *testing.T) {
	t.Parallel()
	r := protocol.ReleaseRequest(&protocol.Terms{TTL: time.Minute}, "k", "a")
	answered := func(b protocol.Answer) *protocol.Request {
		b.Sent, b.Native = true, true
		return (&lane.Call{Req: &r, Answer: b}).Instead()
	}
	for _, b := range []protocol.Answer{
		{Said: int64(0)},
		{Said: fakenode.Error("NOPERM User locks has no permissions to run the 'delifeq' command")},
		{Said: fakenode.Error("ERR unknown command 'DELIFEQ', with args beginning with: 'k' 'a'")},
		{Said: fakenode.Error("ERR Key should be of string type if conditions are specified")},
		{Said: fakenode.Error("WRONGTYPE Operation against a key holding the wrong kind of value")},
	} {
		next := answered(b)
		if assert.NotNil(t, next, "%v", b) {
			assert.False(t, next.MayBeNative())
			assert.Equal(t, r.Value, next.Value)
		}
	}
	for _, b := range []protocol.Answer{
		{Said: int64(1)},
		{Said: fakenode.Error("BUSY Redis is busy running a script")},
		{Said: protocol.ErrTimeout},
	} {
		assert.Nil(t, answered(b), "%v", b)
	}
}
