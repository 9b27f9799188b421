package redlock_test

import (
	"context"
	"crypto/tls"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/realredis"
)

// Open speaks TLS with an authority and a certificate of the user's, and says what is wrong
// where one end speaks it and the other does not.
func TestOpenSpeaksTLS(t *testing.T) {
	realredis.Need(t)
	s := realredis.Start(t, realredis.TLS())
	require.NoError(t, s.Client(t).ConfigSet(t.Context(), "tls-auth-clients", "yes").Err())
	plain := realredis.Start(t)
	with := s.TLSConfig()
	for _, addr := range []string{s.Addr(), "rediss://" + s.Addr() + "/0"} {
		rl, err := redlock.Open(t.Context(), []string{addr}, &redlock.Options{TLS: with})
		require.NoError(t, err, addr)
		lock, err := rl.Mutex("k").Acquire(t.Context())
		require.NoError(t, err)
		require.NoError(t, lock.Release(t.Context()))
		require.NoError(t, rl.Close())
	}
	assert.Empty(t, with.ServerName, "it is the user's")
	for _, c := range []struct {
		addr string
		tls  *tls.Config
		says string
	}{
		{"rediss://" + s.Addr(), nil, "name the authority in Options.TLS or SSL_CERT_FILE"},
		{"rediss://" + s.Addr() + "?skip_verify=true", nil, "certificate required; give it a certificate in Options.TLS"},
		{"rediss://" + plain.Addr(), nil, "if it does not speak TLS, the URL begins with redis://"},
		{s.Addr(), nil, "if it speaks TLS only, the URL begins with rediss://"},
		{"redis://" + s.Addr(), with, "if it speaks TLS only, the URL begins with rediss://"},
	} {
		var err error
		// A busy machine may not get as far as the error within the second that Open has.
		require.Eventually(t, func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err = redlock.Open(ctx, []string{c.addr}, &redlock.Options{TLS: c.tls})
			return errors.Is(err, redlock.ErrNoQuorum) && strings.Contains(err.Error(), c.says)
		}, 30*time.Second, time.Millisecond, "%s: %v", c.addr, &err)
	}
}
