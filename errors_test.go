package redlock

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/assert"
)

func TestQuorumErrorIsOneReadableLine(t *testing.T) {
	e := &QuorumError{Op: "acquire", Key: "orders:42", Need: 3, HolderTTL: 2345678 * time.Microsecond, Outcomes: []Outcome{
		{Node: "a:1/0", Vote: VoteGranted, Elapsed: 1234567},
		{Node: "b:1/0", Vote: VoteRefused, Holder: "0123456789abcdef0123456789abcdef@me", Elapsed: time.Millisecond},
		{Node: "c:1/0", Vote: VoteUnknown, Elapsed: time.Second, Err: errors.New("line\r\nbreak")},
		{Node: "d:1/0", Vote: VotePending, Holder: "0123456789abcdef0123456789abcdef@me"},
		{Node: "e:1/0", Vote: VoteNotSent, Err: errors.New("waiting in the queue"), Holder: "by hand@me"},
		{Node: "f:1/0", Vote: VoteRefused, Holder: "bm90IHRoYXQgc2VjcmV0IQ=="},
	}, reasons: []error{context.Canceled, errors.New("the cause"), ErrHeld}}
	assert.Equal(t, `redlock: acquire "orders:42": held by another: context canceled, the cause (1 of 6 nodes granted, 3 needed; `+
		`the holder's lease ends in 2.346s): a:1/0 granted after 1.23ms; b:1/0 refused (found "01234567...@me") after 1ms; `+
		`c:1/0 unknown (line break) after 1s; d:1/0 pending; e:1/0 not sent (has "by hand@me") (waiting in the queue); f:1/0 refused (found "bm90IHRo...")`, e.Error())
	assert.ErrorIs(t, e, ErrHeld)
	assert.ErrorIs(t, e, context.Canceled)
	assert.NotErrorIs(t, e, ErrNoQuorum)

	e = &QuorumError{Op: "open", Need: 1, reasons: []error{ErrNoQuorum}}
	assert.Equal(t, "redlock: open: no quorum", e.Error())
}

// A node's timeout is not the call's: errors.Is does not find it.
func TestErrorsOfNodesAreNotThoseOfTheCall(t *testing.T) {
	e := &QuorumError{Outcomes: []Outcome{{Node: "a", Vote: VoteUnknown, Err: context.DeadlineExceeded}}, reasons: []error{ErrNoQuorum}}
	assert.NotErrorIs(t, e, context.DeadlineExceeded)
	assert.ErrorIs(t, e.Outcomes[0].Err, context.DeadlineExceeded)
}

// FuzzQuorumError: whatever names, keys, values and errors there are, it is one line.
func FuzzQuorumError(f *testing.F) {
	f.Add("k", "a:1", "tok@me", "EOF", "held", int64(1), uint8(3))
	f.Add("\n\r\x00", "a\nb", "\u2028", "x\r\ny", "a\nb", int64(-1), uint8(0))
	f.Add(strings.Repeat("é", 100), "", strings.Repeat("x", 1000), "", "", int64(math.MaxInt64), uint8(255))
	f.Fuzz(func(t *testing.T, key, node, holder, problem, reason string, left int64, vote uint8) {
		e := &QuorumError{Op: "acquire", Key: key, Need: 2, HolderTTL: time.Duration(left), Outcomes: []Outcome{
			{Node: node, Vote: Vote(vote), Holder: holder, Elapsed: time.Duration(left), Err: errors.New(problem)},
			{Node: "last", Vote: VotePending},
		}, reasons: []error{errors.New(reason), ErrHeld}}
		text := e.Error()
		if i := strings.IndexFunc(text, func(r rune) bool { return r != ' ' && unicode.IsSpace(r) }); i >= 0 {
			t.Fatalf("%q has more than one line", text)
		}
		if !strings.HasPrefix(text, "redlock: acquire") || !strings.HasSuffix(text, "; last pending") {
			t.Fatalf("%q", text)
		}
		if !errors.Is(e, ErrHeld) {
			t.Fatal("the reason is lost")
		}
	})
}
