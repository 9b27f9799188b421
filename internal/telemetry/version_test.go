package telemetry_test

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/redlock/internal/telemetry"
)

func TestVersion(t *testing.T) {
	const library = "github.com/quorumlock/redlock"
	other := &debug.Module{Path: "example.org/x", Version: "v9.9.9"}
	for name, c := range map[string]struct {
		lib  debug.Module
		want string
	}{
		"a release":         {debug.Module{Path: library, Version: "v1.2.3"}, "v1.2.3"},
		"a commit":          {debug.Module{Path: library, Version: "v1.2.4-0.20261122080000-0123456789ab"}, "v1.2.4-0.20261122080000-0123456789ab"},
		"a clone":           {debug.Module{Path: library, Version: "v0.0.0", Replace: &debug.Module{Path: "../redlock"}}, "(devel)"},
		"another's fork":    {debug.Module{Path: library, Version: "v1.2.3", Replace: &debug.Module{Path: "example.org/fork", Version: "v1.2.5"}}, "v1.2.5"},
		"without a version": {debug.Module{Path: library}, "(devel)"},
		"not there":         {*other, "(devel)"},
	} {
		assert.Equal(t, c.want, telemetry.VersionIn(&debug.BuildInfo{Main: *other, Deps: []*debug.Module{other, &c.lib}}), name)
	}
	assert.Equal(t, "v1.2.3", telemetry.VersionIn(&debug.BuildInfo{Main: debug.Module{Path: library, Version: "v1.2.3"}}))
	assert.NotEmpty(t, telemetry.Version())
}
