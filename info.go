package redlock

import (
	"strconv"
	"strings"
	"time"
)

// serverInfo is a server's answer to INFO: one section or several, as names and values.
// Services that hide part of INFO leave fields out, so a field may always be missing.
type serverInfo map[string]string

// parseInfo reads an answer to INFO, whose lines are "name:value". Lines without a colon
// (headings, empty lines) are skipped. If a name occurs twice, its last value counts.
func parseInfo(text string) serverInfo {
	info := make(serverInfo)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info
}

// runID is the random id that a server gives itself at each start; empty if it is missing.
func (i serverInfo) runID() string { return i["run_id"] }

// maxUptime keeps sums of times in range.
const maxUptime = 100 * 365 * 24 * time.Hour

// uptime is how long the server has been running, in whole seconds; ok is false if the
// field is missing or no integer. A server takes the time from its wall clock, so the field
// is negative after that clock was set back. Such a server counts as just started.
func (i serverInfo) uptime() (d time.Duration, ok bool) {
	seconds, ok := i.number("uptime_in_seconds")
	return time.Duration(min(max(seconds, 0), int64(maxUptime/time.Second))) * time.Second, ok
}

// nativeDelete is a command by which a server deletes a key if it has a value. It answers 1 if it
// had, and 0 if not.
type nativeDelete uint8

const (
	noNative nativeDelete = iota // there is only the script
	delIfEq                      // DELIFEQ key value, of Valkey from version 9 on
	delEx                        // DELEX key IFEQ value, of Redis from version 8.4 on
)

// compareAndDelete is the server's own command for it, by the version that it tells. A Valkey
// also tells the version of Redis that it is compatible with.
func (i serverInfo) compareAndDelete() nativeDelete {
	if version, is := i["valkey_version"]; is {
		if atLeast(version, 9, 0) {
			return delIfEq
		}
		return noNative
	}
	if atLeast(i["redis_version"], 8, 4) {
		return delEx
	}
	return noNative
}

// atLeast reports whether a version, as in "8.4.0", is one or a later one.
func atLeast(version string, major, minor int) bool {
	a, b, ok := parseVersion(version)
	return ok && (a > major || a == major && b >= minor)
}

// parseVersion is the first two numbers of a version.
func parseVersion(version string) (major, minor int, ok bool) {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return 0, 0, false
	}
	major, err := strconv.Atoi(parts[0])
	if err != nil {
		return 0, 0, false
	}
	minor, err = strconv.Atoi(parts[1])
	return major, minor, err == nil
}

// number is the value of a field that holds an integer; ok is false if the field is
// missing or holds anything else.
func (i serverInfo) number(name string) (n int64, ok bool) {
	n, err := strconv.ParseInt(i[name], 10, 64)
	if err != nil {
		return 0, false // ParseInt returns the nearest integer, which nobody told
	}
	return n, true
}
