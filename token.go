package redlock

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/quorumlock/redlock/internal/tick"
)

// tokenLen is the length of a token in hexadecimal digits.
const tokenLen = 32

// tokens makes the values that attempts put under their keys.
type tokens struct {
	owner  string
	random io.Reader // nil: crypto/rand
}

// newValue returns a token of 128 random bits and the owner's label, empty for that of the
// Redlock. Every attempt needs its own token: a late release of an earlier attempt would delete
// the keys of a later one with the same token.
func (t *tokens) newValue(owner string) (string, error) {
	if owner == "" {
		owner = t.owner
	}
	var random [tokenLen / 2]byte
	if t.random == nil {
		_, _ = rand.Read(random[:]) // never fails
	} else if err := t.read(&random); err != nil {
		return "", fmt.Errorf("redlock: no randomness for a token: %w", err)
	}
	var room [tokenLen + 1 + 63]byte // on the stack, for all but the longest owners
	value := append(hex.AppendEncode(room[:0], random[:]), '@')
	return string(append(value, owner...)), nil
}

// read is apart from newValue, whose random bytes need not leave the stack otherwise.
func (t *tokens) read(random *[tokenLen / 2]byte) error {
	all := make([]byte, len(random))
	_, err := io.ReadFull(t.random, all)
	copy(random[:], all)
	return err
}

// lastFence proposes fencing tokens: the wall clock in microseconds, or just above the
// last one of this Redlock if its clock was set back a little. Only the number of round
// trips depends on it: nodes that were proposed more than they have agree at once.
type lastFence struct{ last atomic.Uint64 }

func (l *lastFence) propose(now tick.Instant) uint64 {
	wall := uint64(max(now.Wall/int64(time.Microsecond), 0))
	// A counter that is far ahead of time is a matter of its own key.
	if last := l.last.Load(); last >= wall && last < wall+uint64(time.Second/time.Microsecond) {
		return last + 1
	}
	return wall
}

func (l *lastFence) saw(fence uint64) {
	for {
		last := l.last.Load()
		if fence <= last || l.last.CompareAndSwap(last, fence) {
			return
		}
	}
}
