package lane_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/lanetest"
)

var bundleTerms = &protocol.Terms{TTL: time.Minute, NodeTimeout: time.Second}

// bundled makes a call of a few words: what is asked, the key, and for a release how. The value is the
// key's with a v.
func bundled(what string) *lane.Call {
	ask, key, _ := strings.Cut(what, " ")
	value := "v" + key
	var r protocol.Request
	switch ask {
	case "set":
		r = protocol.SetRequest(protocol.OpAcquire, bundleTerms, key, value)
	case "extend":
		r = *protocol.ExtendRequest(bundleTerms, key, value)
	case "release":
		r = protocol.ReleaseRequest(bundleTerms, key, value)
	case "serve":
		r = protocol.QueueReleaseRequest(bundleTerms, key, value, nil)
	case "look":
		r = protocol.QueueReleaseRequest(bundleTerms, key, value, &protocol.QueueArgs{Key: "line of " + key, As: protocol.AsPasser})
	case "leave":
		r = protocol.QueueReleaseRequest(bundleTerms, key, value, &protocol.QueueArgs{Entry: "entry"})
	case "door":
		r = *protocol.OpenDoorRequest(bundleTerms, key, value)
	case "shorten":
		r = protocol.ShortenRequest(bundleTerms, key, value, 1)
	case "token":
		r = *protocol.TokenReleaseRequest(bundleTerms, key, value, "", "")
	case "share":
		r = protocol.SharedReleaseRequest(bundleTerms, key, value, &protocol.ShareArgs{}, &protocol.QueueArgs{})
	case "whole":
		r = protocol.ReleaseRequest(bundleTerms, key, value)
		r = *r.WithSource()
	case "alone":
		r = protocol.ReleaseRequest(bundleTerms, key, value)
		r = *r.ByItself()
	case "script":
		r = protocol.ReleaseRequest(bundleTerms, key, value)
		r = *r.WithLua()
	default:
		panic(what)
	}
	return &lane.Call{Req: &r}
}

func batchOf(whats ...string) (batch []*lane.Call) {
	for _, what := range whats {
		batch = append(batch, bundled(what))
	}
	return batch
}

// described is what goes out: of a bundle its keys in braces, and the queues that it looks at.
func described(calls []*lane.Call) (all []string) {
	for _, c := range calls {
		if c.Req.Bundle() == nil {
			all = append(all, c.Req.Key)
			continue
		}
		args := c.Req.Values()
		n := int(args[2].(int64))
		text := fmt.Sprint(args[3 : 3+n])
		for i, key := range args[3 : 3+n] {
			if args[3+n+i] != fmt.Sprint("v", key) {
				text += fmt.Sprint(" not ", args[3+n+i])
			}
		}
		all = append(all, fmt.Sprint(text, args[3+2*n:]))
	}
	return all
}

func TestBundleHasReleasesOfKeysThatAreOnceInTheBatch(t *testing.T) {
	t.Parallel()
	for batch, want := range map[string]string{
		"release a,release b":                       "[a b][]",
		"release a,serve b,look c,release d":        "[b c a d][{b}:line line of c]",
		"set x,release a,extend y,release b":        "[a b][],x,y",
		"release a,release b,set a,release c":       "[b c][],a,a",
		"release a,release b,release a":             "a,b,a",
		"release a,release b,extend b,release c":    "[a c][],b,b",
		"release a":                                 "a",
		"set a,set b":                               "a,b",
		"release a,leave b,release c":               "[a c][],b",
		"door a,door b,shorten c,token d,share e":   "a,b,c,d,e",
		"whole a,alone b,script c":                  "a,b,c",
		"whole a,release b,alone c,serve d,share e": "[d b][{d}:line],a,c,e",
	} {
		var b lane.Bundle
		for range 2 { // what one batch leaves is of no concern to the next
			out := described(b.Pack(batchOf(strings.Split(batch, ",")...)))
			assert.Equal(t, want, strings.Join(out, ","), batch)
			b.Unpack()
		}
	}
}

// The largest batch, and keys that differ little.
func TestBundleOfTheLargestBatch(t *testing.T) {
	t.Parallel()
	var whats []string
	for i := range lane.MostInBatch {
		whats = append(whats, fmt.Sprint("release ", i))
	}
	var b lane.Bundle
	out := b.Pack(batchOf(whats...))
	require.Len(t, out, 1)
	assert.Len(t, out[0].Req.Bundle().Of, lane.MostInBatch)
	b.Unpack()
	for i := range whats {
		whats[i] = fmt.Sprint("release ", i/2)
	}
	assert.Len(t, b.Pack(batchOf(whats...)), lane.MostInBatch)
	b.Unpack()
}

func TestEachReleaseOfABundleHasItsOwnAnswer(t *testing.T) {
	t.Parallel()
	list := func(places ...any) protocol.Answer {
		return protocol.Answer{Said: append([]any{}, places...), Sent: true}
	}
	failed := func(text string) protocol.Answer {
		return protocol.Answer{Said: lanetest.ServerError(text), Sent: true}
	}
	for name, c := range map[string]struct {
		answer protocol.Answer
		want   string // of a, b and c: their kind, or what is asked instead
		never  bool
	}{
		"all":                 {list(), "granted granted granted", false},
		"one is left":         {list(int64(2)), "granted alone granted", false},
		"all are left":        {list(int64(1), int64(2), int64(3)), "alone alone alone", false},
		"a place too many":    {list(int64(4)), "unknown unknown unknown", false},
		"a place too few":     {list(int64(0)), "unknown unknown unknown", false},
		"no place":            {list("1"), "unknown unknown unknown", false},
		"no list":             {protocol.Answer{Said: int64(1), Sent: true}, "unknown unknown unknown", false},
		"nothing":             {protocol.Answer{Sent: true}, "unknown unknown unknown", false},
		"no answer":           {lanetest.Lost, "unknown unknown unknown", false},
		"never sent":          {lanetest.Refused, "unsent unsent unsent", false},
		"an unknown script":   {lanetest.NoScript, "source source source", false},
		"busy":                {failed("BUSY Redis is busy running a script."), "failed failed failed", false},
		"a replica":           {failed("READONLY You can't write against a read only replica."), "failed failed failed", false},
		"denied":              {failed("NOPERM User u has no permissions to run the 'mget' command"), "alone alone alone", true},
		"a foreign key":       {failed("NOPERM No permissions to access a key"), "alone alone alone", false},
		"another slot":        {failed("CROSSSLOT Keys in request don't hash to the same slot"), "alone alone alone", true},
		"an error in Redis 6": {failed("ERR Error running script (call to f_1): @user_script:18: READONLY You can't write against a read only replica."), "alone alone alone", false},
	} {
		var b lane.Bundle
		batch := batchOf("release a", "set x", "release b", "release c")
		for i := range batch {
			batch[i].Answer = protocol.Answer{Kind: protocol.Unknown, Said: protocol.ErrTimeout} // of the time before
		}
		out := b.Pack(batch)
		require.Len(t, out, 2)
		out[0].Answer, out[1].Answer = c.answer, lanetest.Ok
		assert.Equal(t, c.never, b.Unpack(), name)
		var got []string
		for _, call := range slices.Delete(slices.Clone(batch), 1, 2) {
			got = append(got, whatComes(call))
		}
		assert.Equal(t, c.want, strings.Join(got, " "), name)
		assert.Equal(t, lanetest.Ok, batch[1].Answer, name)
		assert.NotContains(t, described(b.Pack(batch[1:2])), "[", name)
	}
}

// whatComes is what becomes of a release that was answered.
func whatComes(c *lane.Call) string {
	switch next := c.Instead(); {
	case next != nil && next.Whole:
		return "source"
	case next != nil && !next.MayBeBundled():
		return "alone"
	case next != nil:
		return "again"
	}
	return [...]string{"", "granted", "refused", "unknown", "failed", "unsent"}[c.Read(c.Req.Op).Kind]
}

// A server is told the script after it said that it does not know it, until it has run it.
func TestBundleGoesAsItsTextToAServerThatDoesNotKnowIt(t *testing.T) {
	t.Parallel()
	var b lane.Bundle
	sends := func(whole bool, answer protocol.Answer) {
		t.Helper()
		out := b.Pack(batchOf("release a", "release b"))
		assert.Equal(t, whole, out[0].Req.Whole)
		out[0].Answer = answer
		b.Unpack()
	}
	done := protocol.Answer{Said: []any{}, Sent: true}
	sends(false, done)
	sends(false, lanetest.NoScript)
	sends(true, protocol.Answer{Said: lanetest.ServerError("NOPERM No permissions to access a key"), Sent: true})
	sends(true, lanetest.Lost)
	sends(true, done)
	sends(false, done)
}

// A release that the server is to be asked for by itself goes first in the next batch, and its caller
// is told of nothing before.
func TestReleaseThatABundleLeftGoesNext(t *testing.T) {
	t.Parallel()
	onBench(t, func(b *bench) {
		set := b.send(protocol.OpAcquire, "a")
		lanetest.Rest(time.Millisecond)
		asked := 0
		b.Answers(func(name string, _ bool) protocol.Answer {
			if name == "arelease" {
				if asked++; asked == 1 {
					return protocol.Answer{Sent: true, Alone: true}
				}
			}
			return protocol.Answer{}
		})
		b.Takes = 10 * time.Millisecond
		c := b.call(protocol.OpRelease, "a")
		c.Set = set
		b.lane.TakeBack(c, b.now())
		lanetest.Rest(5 * time.Millisecond)
		b.send(protocol.OpAcquire, "b")
		lanetest.Rest(6 * time.Millisecond)
		assert.Zero(t, lastTold(c), "nothing is known of it")
		lanetest.Rest(time.Second)
		assert.Equal(t, protocol.Granted, lastTold(c).Kind)
		assert.Equal(t, [][]string{{"aacquire"}, {"arelease"}, {"arelease", "bacquire"}}, b.Sent())
		assert.False(t, c.Req.MayBeBundled())
		b.empty()
	})
}
