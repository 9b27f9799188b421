package admin_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/realredis"
)

// What a user's client does beside leading to its server is not done again by a copy of it.
func TestClientThatWantsNotificationsIsAskedWithoutThem(t *testing.T) {
	c := redis.NewClient(&redis.Options{
		Addr: realredis.Start(t).Addr(), Protocol: 3,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeEnabled},
	})
	defer c.Close()
	nodes, err := admin.New([]redis.UniversalClient{c}, nil)
	require.NoError(t, err)
	_, err = nodes.Clients(t.Context())
	require.NoError(t, err)
	report, err := nodes.Check(t.Context())
	require.NoError(t, err)
	assert.NoError(t, report.Nodes[0].Err)
}
