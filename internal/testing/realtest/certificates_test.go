package realtest_test

import (
	"context"
	"crypto/tls"
	"errors"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Servers get new keys, and certificates of the same authority, while locks are held, renewed and waited for,
// and each connection has to be made anew. Clients go on as if nothing had happened.
func TestCertificatesAreReplaced(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	for name, connect := range map[string]func(t *testing.T, servers []*realredis.Server, o redlock.Options) *redlock.Redlock{
		"Open": func(t *testing.T, servers []*realredis.Server, o redlock.Options) *redlock.Redlock {
			o.TLS = servers[0].TLSConfig() // all servers have one authority
			var urls []string
			for _, s := range servers {
				urls = append(urls, s.URL())
			}
			return openAt(t, urls, o)
		},
		"New": func(t *testing.T, servers []*realredis.Server, o redlock.Options) *redlock.Redlock {
			var clients []redis.UniversalClient
			for _, s := range servers {
				clients = append(clients, s.Client(t))
			}
			return newOn(t, o, clients...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := realredis.StartN(t, 3, realredis.TLS(), realredis.Args("tls-auth-clients", "yes"))
			waits := make(chan struct{})
			o := redlock.Options{TTL: 6 * time.Second, NodeTimeout: 1500 * time.Millisecond, NoRestartGuard: true}
			o.Hooks = &redlock.Hooks{Waiting: func(_ context.Context, info redlock.WaitInfo) {
				if info.Key == "waited for" {
					close(waits)
				}
			}}
			rl := connect(t, servers, o)
			held, err := rl.Mutex("held", redlock.WithRenewal()).Acquire(t.Context())
			require.NoError(t, err)
			waited, err := rl.Mutex("waited for", redlock.WithRenewal()).Acquire(t.Context())
			require.NoError(t, err)
			turn := background(func() error {
				lock, err := rl.Mutex("waited for").Acquire(t.Context())
				if err != nil {
					return err
				}
				return lock.Release(context.Background())
			})
			await(t, waits)
			for serial := int64(3); serial < 6; serial++ {
				for _, s := range servers {
					require.NoError(t, s.ReplaceCertificate(t.Context(), serial))
					assert.EqualValues(t, serial, shownBy(t, s), "the certificate's number")
					for _, kind := range []string{"normal", "pubsub"} {
						require.NoError(t, s.Client(t).Do(t.Context(), "CLIENT", "KILL", "TYPE", kind).Err())
					}
				}
				require.NoError(t, requireAcquire(t, rl).Release(t.Context()))
			}
			require.NoError(t, held.Extend(t.Context(), o.TTL))
			require.NoError(t, errors.Join(held.Context().Err(), waited.Context().Err()))
			require.NoError(t, waited.Release(t.Context()))
			require.NoError(t, await(t, turn))
			require.NoError(t, held.Release(t.Context()))
		})
	}
}

// shownBy is the number of the certificate that a server shows.
func shownBy(t *testing.T, s *realredis.Server) int64 {
	t.Helper()
	c, err := (&tls.Dialer{Config: s.TLSConfig()}).DialContext(t.Context(), "tcp", s.Addr())
	require.NoError(t, err)
	defer c.Close()
	return c.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}
