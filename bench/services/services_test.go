package services

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each kind starts, survives the loss of a server as it should, and takes the server back.
func TestServersStartAndComeBack(t *testing.T) {
	for name, start := range map[string]func(context.Context) (*Cluster, error){
		"postgres":  Postgres,
		"etcd":      func(ctx context.Context) (*Cluster, error) { return Etcd(ctx, 3) },
		"zookeeper": func(ctx context.Context) (*Cluster, error) { return ZooKeeper(ctx, 3) },
	} {
		t.Run(name, func(t *testing.T) {
			c, err := start(t.Context())
			if errors.Is(err, ErrMissing) {
				t.Skip(err)
			}
			require.NoError(t, err)
			defer c.Close()
			assert.NotEmpty(t, c.Version)
			i, err := c.Kill(t.Context())
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			assert.Error(t, c.ready(ctx, c.Addrs[i]), "it is gone")
			cancel()
			require.NoError(t, c.Restart(i))
			require.NoError(t, c.await(t.Context(), i))
		})
	}
}
