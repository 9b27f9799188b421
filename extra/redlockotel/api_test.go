package redlockotel_test

import (
	"flag"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/testing/apirecord"
)

var rewrite = flag.Bool("rewrite", false, "add what is not recorded")

func TestAPI(t *testing.T) {
	require.NoError(t, apirecord.Check(".", "github.com/quorumlock/redlock/extra/redlockotel", "testdata/api.txt", *rewrite))
}
