package telemetry

import "runtime/debug"

const library = "github.com/quorumlock/redlock"

// Version is that of the library in this program, "(devel)" if it was built from a clone or if
// it is not known.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return versionIn(info)
	}
	return devel
}

const devel = "(devel)"

func versionIn(info *debug.BuildInfo) string {
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path != library {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		// A module of this tree requires v0.0.0, which there is not.
		if m.Version != "" && m.Version != "v0.0.0" {
			return m.Version
		}
	}
	return devel
}
