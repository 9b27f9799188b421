package protocol

import (
	"strconv"
	"strings"
	"time"
)

// Info is a server's answer to INFO: one section or several, as names and values.
// Services that hide part of INFO leave fields out, so a field may always be missing.
type Info map[string]string

// ParseInfo reads an answer to INFO, whose lines are "name:value". Lines without a colon
// (headings, empty lines) are skipped. If a name occurs twice, its last value counts. What comes behind
// mostFields is not read.
func ParseInfo(text string) Info {
	info := make(Info)
	for line := range strings.Lines(text) {
		if len(info) == mostFields {
			break
		}
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = ServerText(value)
		}
	}
	return info
}

// mostFields is many times what a server tells, so that a text of short lines takes no more memory than another.
const mostFields = 5000

// RunID is the random id that a server gives itself at each start; empty if it is missing.
func (i Info) RunID() string { return i["run_id"] }

// MaxUptime keeps sums of times in range.
const maxUptime = 100 * 365 * 24 * time.Hour

// Uptime is how long the server has been running, in whole seconds; ok is false if the
// field is missing or no integer. A server takes the time from its wall clock, so the field
// is negative after that clock was set back. Such a server counts as just started.
func (i Info) Uptime() (d time.Duration, ok bool) {
	seconds, ok := i.Number("uptime_in_seconds")
	return time.Duration(min(max(seconds, 0), int64(maxUptime/time.Second))) * time.Second, ok
}

// start is when the process started, in seconds since 1970; 0 if it is not told. Both numbers are of one moment of the
// server's own clock, which counts them from the same start, so it stays what it is when that clock is set.
func (i Info) start() int64 {
	now, ok := i.Number("server_time_usec")
	up, told := i.Number("uptime_in_seconds")
	if !ok || !told {
		return 0
	}
	return now/1e6 - up
}

// puts is how often the process was told to put other data in the place of its own: that may be what it was once, with
// the memory mark of then, under the same run id. Some of these commands do other things, too; they count as well.
func (i Info) puts() (n int64) {
	for _, command := range []string{"debug", "swapdb", "replicaof", "slaveof", "failover", "cluster|failover", "cluster|replicate"} {
		_, calls, _ := strings.Cut(i["cmdstat_"+command], "calls=")
		calls, _, _ = strings.Cut(calls, ",")
		c, _ := strconv.ParseInt(calls, 10, 64)
		n += max(c, 0)
	}
	return n
}

// NativeDelete is a command by which a server deletes a key if it has a value. It answers 1 if it
// had, and 0 if not.
type NativeDelete uint8

const (
	NoNative NativeDelete = iota // there is only the script
	DelIfEq                      // DELIFEQ key value, of Valkey from version 9 on
	DelEx                        // DELEX key IFEQ value, of Redis from version 8.4 on
)

// CompareAndDelete is the server's own command for it, by the version that it tells. A Valkey
// also tells the version of Redis that it is compatible with.
func (i Info) CompareAndDelete() NativeDelete {
	if version, is := i["valkey_version"]; is {
		if AtLeast(version, 9, 0) {
			return DelIfEq
		}
		return NoNative
	}
	if AtLeast(i["redis_version"], 8, 4) {
		return DelEx
	}
	return NoNative
}

// AtLeast reports whether a version, as in "8.4.0", is one or a later one.
func AtLeast(version string, major, minor int) bool {
	a, b, ok := ParseVersion(version)
	return ok && (a > major || a == major && b >= minor)
}

// ParseVersion is the first two numbers of a version.
func ParseVersion(version string) (major, minor int, ok bool) {
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

// Number is the value of a field that holds an integer; ok is false if the field is
// missing or holds anything else.
func (i Info) Number(name string) (n int64, ok bool) {
	n, err := strconv.ParseInt(i[name], 10, 64)
	if err != nil {
		return 0, false // ParseInt returns the nearest integer, which was not told
	}
	return n, true
}
