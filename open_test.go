package redlock_test

import (
	"context"
	"crypto/tls"
	"errors"
	"regexp"
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
	for name, c := range map[string]struct {
		addr string
		tls  *tls.Config
		says string
	}{
		"unknown authority": {"rediss://" + s.Addr(), nil, `name the authority in Options.TLS or SSL_CERT_FILE`},
		"no certificate of the client": {"rediss://" + s.Addr() + "?skip_verify=true", nil,
			// The server's alert may get lost behind what it has not read yet.
			`certificate required; give it a certificate in Options.TLS|if it wants a certificate of its clients, give it one in Options.TLS`},
		"server without TLS":        {"rediss://" + plain.Addr(), nil, `if it does not speak TLS, the URL begins with redis://`},
		"server with TLS":           {s.Addr(), nil, `if it speaks TLS only, the URL begins with rediss://`},
		"server with TLS, by a URL": {"redis://" + s.Addr(), with, `if it speaks TLS only, the URL begins with rediss://`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var err error
			// A busy machine may not get as far as the error within the second that Open has.
			require.Eventually(t, func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err = redlock.Open(ctx, []string{c.addr}, &redlock.Options{TLS: c.tls})
				return errors.Is(err, redlock.ErrNoQuorum) && regexp.MustCompile(c.says).MatchString(err.Error())
			}, 30*time.Second, time.Millisecond, "%s: %v", c.addr, &err)
		})
	}
}
