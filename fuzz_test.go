package redlock_test

import (
	"context"
	"errors"
	"math"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/bubble"
	"github.com/quorumlock/redlock/redlocktest"
)

// See also FuzzTally and FuzzValidity.

// FuzzOptions: options are refused with ErrInvalid or make locks that are valid for a
// while, and never longer than their TTL.
func FuzzOptions(f *testing.F) {
	f.Add(int64(0), int64(0), 0.0, int64(0), int64(0), int64(0), "")
	f.Add(int64(10*time.Millisecond), int64(2500*time.Microsecond), 0.5, int64(1), int64(1), int64(-1), "me")
	f.Add(int64(24*time.Hour), int64(6*time.Hour), 0.7, int64(time.Hour), int64(time.Hour), int64(0), "x@y\r\n\x00")
	f.Add(int64(math.MaxInt64), int64(math.MaxInt64), math.Inf(1), int64(math.MinInt64), int64(math.MaxInt64), int64(1), strings.Repeat("x", 300))
	f.Add(int64(-1), int64(-1), math.NaN(), int64(5), int64(3), int64(1), "")
	f.Fuzz(func(t *testing.T, ttl, timeout int64, drift float64, lo, hi, guard int64, owner string) {
		bubble.Run(t, 1, func(t *testing.T, cluster *redlocktest.Cluster) {
			rl, err := redlock.New(cluster.Clients(), &redlock.Options{
				TTL: time.Duration(ttl), NodeTimeout: time.Duration(timeout), DriftFactor: drift,
				RetryMin: time.Duration(lo), RetryMax: time.Duration(hi), RestartGuard: time.Duration(guard), Owner: owner,
			})
			if err != nil {
				require.ErrorIs(t, err, redlock.ErrInvalid)
				require.NotContains(t, err.Error(), "\n")
				require.Zero(t, cluster.Commands())
				return
			}
			defer rl.Close()
			lock, err := rl.Mutex("k").TryAcquire(t.Context())
			require.NoError(t, err)
			require.Positive(t, lock.Validity())
			if ttl != 0 {
				require.Less(t, lock.Validity(), time.Duration(ttl))
				require.GreaterOrEqual(t, cluster.TTLs("k")[0], time.Duration(ttl))
			}
			_, err = rl.Mutex("k").TryAcquire(t.Context())
			require.ErrorIs(t, err, redlock.ErrHeld)
			require.NoError(t, lock.Release(t.Context()))
		})
	})
}

// FuzzKeys: any bytes but none, too many and the names of ours are a key, and pass through
// unchanged. What goes with the key is a name of ours.
func FuzzKeys(f *testing.F) {
	for _, k := range []string{"", "a", "{a}", "a\x00b", "\xff\xfe\xfd", "\r\n", "日本", " ", strings.Repeat("k", 1000), "{a}:line", "{a}:line:", "{{a}:fence", "a}:door:", "redlock:memory"} {
		f.Add(k, "")
		f.Add(k, "prefix:")
	}
	f.Fuzz(func(t *testing.T, k, prefix string) {
		bubble.Run(t, 1, func(t *testing.T, cluster *redlocktest.Cluster) {
			rl, err := redlock.New(cluster.Clients(), &redlock.Options{KeyPrefix: prefix})
			if len(prefix) > 8191 {
				require.ErrorIs(t, err, redlock.ErrInvalid)
				return
			}
			require.NoError(t, err)
			defer rl.Close()
			m := rl.Mutex(k)
			lock, err := m.TryAcquire(t.Context())
			if k == "" || len(prefix+k) > 8192 || isOurs(prefix+k) {
				require.ErrorIs(t, err, redlock.ErrInvalid)
				return
			}
			require.NoError(t, err)
			for _, beside := range redlock.NamesBeside(prefix + k) {
				if name, ok := strings.CutPrefix(beside, prefix); ok {
					_, err := rl.Mutex(name).TryAcquire(t.Context())
					require.ErrorIs(t, err, redlock.ErrInvalid, beside)
				}
			}
			require.Equal(t, []string{prefix + k}, keysOf(cluster.Node(0)))
			require.Equal(t, k, lock.Key())
			_, err = m.TryAcquire(t.Context())
			require.ErrorIs(t, err, redlock.ErrHeld)
			require.NotContains(t, err.Error(), "\n")
			s, err := m.Inspect(t.Context())
			require.NoError(t, err)
			require.Equal(t, lock.Token(), s.Token)
			require.NoError(t, lock.Extend(t.Context(), ttl))
			require.NoError(t, lock.Release(t.Context()))
			require.Empty(t, keysOf(cluster.Node(0)))
		})
	})
}

// isOurs says by other means than the library whether something of ours has the name: whether
// there is a key that would have it.
func isOurs(name string) bool {
	if strings.HasSuffix(name, memoryMark) {
		return true
	}
	for _, kind := range []string{"line", "shared", "door", "fence"} {
		usual, isUsual := strings.CutSuffix(strings.TrimPrefix(name, "{"), "}:"+kind)
		other, isOther := strings.CutSuffix(name, ":"+kind+":")
		for key, is := range map[string]bool{usual: isUsual, other: isOther} {
			if is && key != "" && slices.Contains(redlock.NamesBeside(key), name) {
				return true
			}
		}
	}
	return false
}

// FuzzQuorumError: whatever names, keys, values and errors there are, it is one line.
func FuzzQuorumError(f *testing.F) {
	f.Add("k", "a:1", "tok@me", "EOF", "held", int64(1), uint8(3))
	f.Add("\n\r\x00", "a\nb", "\u2028", "x\r\ny", "a\nb", int64(-1), uint8(0))
	f.Add(strings.Repeat("é", 100), "", strings.Repeat("x", 1000), "", "", int64(math.MaxInt64), uint8(255))
	f.Fuzz(func(t *testing.T, key, node, holder, problem, reason string, left int64, vote uint8) {
		e := redlock.NewQuorumError("acquire", key, 2, time.Duration(left), []redlock.Outcome{
			{Node: node, Vote: redlock.Vote(vote), Holder: holder, Elapsed: time.Duration(left), Err: errors.New(problem)},
			{Node: "last", Vote: redlock.VotePending},
		}, errors.New(reason), redlock.ErrHeld)
		text := e.Error()
		if i := strings.IndexFunc(text, func(r rune) bool { return r != ' ' && unicode.IsSpace(r) }); i >= 0 {
			t.Fatalf("%q has more than one line", text)
		}
		if !strings.HasPrefix(text, "redlock: acquire") || !strings.HasSuffix(text, "; last pending") {
			t.Fatalf("%q", text)
		}
		if !errors.Is(e, redlock.ErrHeld) {
			t.Fatal("the reason is lost")
		}
	})
}

// FuzzAddresses: an address is refused with ErrInvalid, without its password, or taken.
func FuzzAddresses(f *testing.F) {
	for _, a := range []string{
		"10.0.0.1:6379", "[::1]:6379", "redis://u:PASSWORD@h:1/2", "rediss://:PASSWORD@h", "unix://u:PASSWORD@/tmp/s?db=1",
		"u:PASSWORD@h:1", "redis://u:PASSWORD@h:x", "redis://%zz:PASSWORD@h", "://", "redis://u:PASSWORD@h:1/x?a=PASSWORD",
		"redis://h?max_retries=5&read_timeout=-1&pool_size=3&protocol=9", "",
	} {
		f.Add(a)
	}
	ctx := canceled()
	f.Fuzz(func(t *testing.T, addr string) {
		rl, err := redlock.Open(ctx, []string{addr}, nil)
		switch {
		case rl != nil || err == nil:
			t.Fatal("opened with a context that is over")
		case errors.Is(err, context.Canceled):
			return // well-formed
		}
		require.ErrorIs(t, err, redlock.ErrInvalid)
		if u, uerr := url.Parse(addr); uerr == nil && u.User != nil {
			if pw, _ := u.User.Password(); len(pw) > 7 && !strings.Contains(u.Host+u.Path+u.Scheme, pw) {
				require.NotContains(t, err.Error(), pw)
			}
		}
	})
}
