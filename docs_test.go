package redlock_test

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/quorumlock/redlock/internal/doccheck"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func pages(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, all)
	return append(all, "README.md", "examples/README.md", "cmd/redlock/README.md")
}

// Examples that import other libraries ("go peers") are compiled in bench, which has them.
func TestExamplesOfThePagesCompile(t *testing.T) {
	c := doccheck.Compiler{
		Dir: ".",
		Imports: []string{
			"context", "crypto/tls", "database/sql", "errors", "fmt", "log", "log/slog", "net/http", "os", "testing", "testing/synctest", "time",
			"github.com/quorumlock/redlock", "github.com/quorumlock/redlock/redlocktest", "github.com/redis/go-redis/v9",
		},
		Scope: `
			func chargeCard(context.Context, ...any) error { return nil }
			func work(context.Context) error { return nil }
			func nextBatch() bool { return false }
		`,
		Params: "ctx context.Context, t *testing.T, rl *redlock.Redlock, lock *redlock.Lock, db *sql.DB, addrs []string, err error",
	}
	require.NoError(t, c.Load())
	compiled := 0
	for _, page := range pages(t) {
		blocks, err := doccheck.Blocks(page)
		require.NoError(t, err)
		for _, b := range blocks {
			if b.Info == "go" {
				compiled++
				assert.NoError(t, c.Compile(b), "%v", b)
			}
		}
	}
	assert.NotZero(t, compiled)
}

func TestLinksOfThePagesLeadSomewhere(t *testing.T) {
	for _, page := range pages(t) {
		broken, err := doccheck.BrokenLinks(page)
		require.NoError(t, err)
		assert.Empty(t, broken, page)
	}
}

func TestPicturesAreWellFormed(t *testing.T) {
	pictures, err := filepath.Glob("docs/img/*.svg")
	require.NoError(t, err)
	require.NotEmpty(t, pictures)
	for _, p := range pictures {
		f, err := os.Open(p)
		require.NoError(t, err)
		d := xml.NewDecoder(f)
		for err == nil {
			_, err = d.Token()
		}
		assert.True(t, errors.Is(err, io.EOF), "%s: %v", p, err)
		require.NoError(t, f.Close())
	}
}
