package redsync_test

import (
	"flag"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/testing/apirecord"
)

var rewrite = flag.Bool("rewrite", false, "add what is not recorded")

func TestAPI(t *testing.T) {
	const module = "github.com/quorumlock/redlock/extra/redsync"
	for pkg, file := range map[string]string{"": "api", "/redis": "api-redis", "/redis/goredis/v9": "api-goredis"} {
		require.NoError(t, apirecord.Check(".", module+pkg, "testdata/"+file+".txt", *rewrite))
	}
}
