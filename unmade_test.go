package redlock_test

import (
	"testing"

	"github.com/quorumlock/redlock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A Redlock that Open failed to make is nil, and one in a struct that nobody filled is zero.
// Neither must panic.
func TestARedlockThatNobodyMade(t *testing.T) {
	for name, rl := range map[string]*redlock.Redlock{"nil": nil, "zero": new(redlock.Redlock)} {
		t.Run(name, func(t *testing.T) {
			r, err := rl.Check(t.Context())
			require.ErrorIs(t, err, redlock.ErrInvalid)
			require.EqualError(t, err, "redlock: check: invalid Redlock: it was not made by Open or New")
			assert.Empty(t, r)

			assert.Empty(t, rl.Nodes())
			assert.Zero(t, rl.Quorum())
			_, err = rl.Mutex(key).TryAcquire(t.Context())
			require.ErrorIs(t, err, redlock.ErrInvalid)
			require.NoError(t, rl.Close())
		})
	}
}
