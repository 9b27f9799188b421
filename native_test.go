package redlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// A node that keeps a queue has to give the turn to somebody, which the server's own command
// does not do.
func TestOnlyPlainReleasesAreNative(t *testing.T) {
	t.Parallel()
	terms := &leaseTerms{ttl: time.Minute}
	plain, queue := releaseRequest(terms, "k", "a"), queueReleaseRequest(terms, "k", "a", nil)
	assert.True(t, plain.mayBeNative())
	assert.False(t, queue.mayBeNative(), "somebody may wait there")
	assert.False(t, plain.withSource().mayBeNative(), "the server has just asked for the script")
	assert.False(t, extendRequest(terms, "k", "a").mayBeNative())
}

// What the server's own command did not do, the script does, or says why not.
func TestWhatANativeReleaseDidNotDoIsLeftToTheScript(t *testing.T) {
	t.Parallel()
	r := releaseRequest(&leaseTerms{ttl: time.Minute}, "k", "a")
	answered := func(b ballot) *request {
		b.sent, b.native = true, true
		return (&call{req: &r, ballot: b}).instead()
	}
	for _, b := range []ballot{
		{val: int64(0)},
		{err: memError("NOPERM User locks has no permissions to run the 'delifeq' command")},
		{err: memError("ERR unknown command 'DELIFEQ', with args beginning with: 'k' 'a'")},
		{err: memError("ERR Key should be of string type if conditions are specified")},
		{err: memError("WRONGTYPE Operation against a key holding the wrong kind of value")},
	} {
		next := answered(b)
		if assert.NotNil(t, next, "%v", b) {
			assert.False(t, next.mayBeNative())
			assert.Equal(t, r.value, next.value)
		}
	}
	for _, b := range []ballot{
		{val: int64(1)},
		{err: memError("BUSY Redis is busy running a script")},
		{err: errTimeout},
	} {
		assert.Nil(t, answered(b), "%v", b)
	}
}
