package linear_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/testing/history"
	"github.com/quorumlock/redlock/proof/linear"
)

func acquired(client int, token string, call, ret, until int64) history.Op {
	return history.Op{Client: client, Kind: history.Acquire, Key: "k", Token: token, Call: call, Return: ret, Outcome: history.OK, Until: until}
}

func fenced(op history.Op, fence uint64) history.Op {
	op.Fence = fence
	return op
}

func extended(client int, token string, call, ret, until int64) history.Op {
	return history.Op{Client: client, Kind: history.Extend, Key: "k", Token: token, Call: call, Return: ret, Outcome: history.OK, Until: until}
}

func released(client int, token string, call, ret int64, outcome string) history.Op {
	return history.Op{Client: client, Kind: history.Release, Key: "k", Token: token, Call: call, Return: ret, Outcome: outcome}
}

func failed(client int, kind, token string, call, ret int64) history.Op {
	return history.Op{Client: client, Kind: kind, Key: "k", Token: token, Call: call, Return: ret, Outcome: history.Failed}
}

func onKey(key string, op history.Op) history.Op {
	op.Key = key
	return op
}

func TestHistories(t *testing.T) {
	for _, c := range []struct {
		name string
		rule string // that is broken; empty: none
		ops  []history.Op
	}{
		{"nothing", "", nil},
		{"one after the other", "", []history.Op{
			acquired(1, "a", 0, 5, 100), released(1, "a", 10, 20, history.OK),
			acquired(2, "b", 12, 18, 110), released(2, "b", 30, 35, history.OK),
		}},
		{"waiting all the time", "", []history.Op{
			acquired(1, "a", 0, 5, 100), acquired(2, "b", 1, 22, 120), acquired(3, "c", 2, 42, 140),
			released(1, "a", 20, 21, history.OK), released(2, "b", 40, 41, history.OK), released(3, "c", 60, 61, history.OK),
		}},
		{"two keys", "", []history.Op{acquired(1, "a", 0, 5, 100), onKey("l", acquired(2, "b", 0, 5, 100))}},
		{"failures mean nothing", "", []history.Op{
			acquired(1, "a", 0, 5, 100), failed(2, history.Acquire, "", 6, 7), failed(1, history.Extend, "a", 8, 9),
			released(1, "a", 10, 20, history.OK), failed(2, history.Acquire, "", 30, 31),
		}},
		{"after the lease", "", []history.Op{acquired(1, "a", 0, 5, 100), acquired(2, "b", 90, 101, 200)}},
		{"after the lease, released late", "", []history.Op{
			acquired(1, "a", 0, 5, 100), acquired(2, "b", 90, 101, 200),
			released(1, "a", 120, 121, history.NotHeld), released(2, "b", 150, 151, history.OK),
		}},
		{"after the lease, a release that says yes", "", []history.Op{
			acquired(1, "a", 0, 5, 100), acquired(2, "b", 90, 103, 200), released(1, "a", 99, 104, history.OK),
		}},
		{"granted, but over when it is known", "", []history.Op{acquired(1, "a", 0, 150, 100), acquired(2, "b", 105, 110, 210)}},
		{"an extend in time", "", []history.Op{
			acquired(1, "a", 0, 5, 100), extended(1, "a", 90, 95, 180), acquired(2, "b", 99, 181, 300),
		}},
		{"an extend whose return was late", "", []history.Op{
			acquired(1, "a", 0, 5, 100), extended(1, "a", 90, 500, 180), acquired(2, "b", 99, 181, 300),
		}},
		{"released without an answer", "", []history.Op{
			acquired(1, "a", 0, 5, 100), released(1, "a", 10, 20, history.Unknown), acquired(2, "b", 40, 41, 140),
		}},
		{"killed while it released", "", []history.Op{
			acquired(1, "a", 0, 5, 100), released(1, "a", 10, 0, history.Unknown), acquired(2, "b", 40, 41, 140),
			released(2, "b", 42, 0, history.Unknown), released(2, "b", 42, 43, history.OK), acquired(3, "c", 43, 44, 200),
		}},
		{"fences increase", "", []history.Op{
			fenced(acquired(1, "a", 0, 5, 100), 7), released(1, "a", 10, 20, history.OK), fenced(acquired(2, "b", 12, 18, 110), 8),
		}},

		{"overlap", "exclusion", []history.Op{acquired(1, "a", 0, 5, 100), acquired(2, "b", 6, 7, 110)}},
		{"overlap after a longer one", "exclusion", []history.Op{
			acquired(1, "a", 0, 5, 100), acquired(2, "b", 6, 7, 20), acquired(3, "c", 50, 55, 150),
		}},
		{"granted before the lease is over", "exclusion", []history.Op{acquired(1, "a", 0, 5, 100), acquired(2, "b", 90, 99, 200)}},
		{"granted before an extended lease is over", "exclusion", []history.Op{
			acquired(1, "a", 0, 5, 100), extended(1, "a", 90, 95, 180), acquired(2, "b", 99, 120, 300),
		}},
		{"granted in the middle of another's release is not, before it is", "exclusion", []history.Op{
			acquired(1, "a", 0, 5, 100), acquired(2, "b", 6, 9, 110), released(1, "a", 10, 20, history.OK),
		}},
		{"a release that says yes while another holds it", "exclusion", []history.Op{
			acquired(1, "a", 0, 5, 100), acquired(2, "b", 20, 30, 120), released(1, "a", 40, 41, history.OK),
		}},
		{"an extend that says yes after the lease", "linear", []history.Op{
			acquired(1, "a", 0, 5, 100), extended(1, "a", 101, 102, 200),
		}},
		{"an extend that says yes while another holds it", "linear", []history.Op{
			acquired(1, "a", 0, 5, 100), released(1, "a", 10, 20, history.Unknown), acquired(2, "b", 21, 22, 130),
			extended(1, "a", 23, 24, 25),
		}},
		{"fences decrease", "fence", []history.Op{
			fenced(acquired(1, "a", 0, 5, 100), 7), released(1, "a", 10, 20, history.OK), fenced(acquired(2, "b", 21, 28, 120), 6),
		}},
		{"fences are equal", "fence", []history.Op{
			fenced(acquired(1, "a", 0, 5, 100), 7), released(1, "a", 10, 20, history.OK), fenced(acquired(2, "b", 21, 28, 120), 7),
		}},
		{"fences decrease where only the order of holders tells", "linear", []history.Op{
			fenced(acquired(1, "a", 0, 5, 100), 7), fenced(acquired(2, "b", 1, 28, 120), 6), released(1, "a", 10, 20, history.OK),
		}},
		{"a token granted twice", "history", []history.Op{acquired(1, "a", 0, 5, 10), acquired(2, "a", 21, 28, 120)}},
		{"a release of nothing", "history", []history.Op{released(1, "a", 0, 5, history.OK)}},
		{"an unknown kind", "history", []history.Op{acquired(1, "a", 0, 5, 10), failed(1, "steal", "a", 6, 7)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			breaks(t, c.ops, c.rule)
		})
	}
}

// breaks asserts which rule a history breaks; empty: none.
func breaks(t *testing.T, ops []history.Op, rule string) {
	t.Helper()
	err := linear.Check(ops, time.Minute)
	if rule == "" {
		require.NoError(t, err)
		return
	}
	var v *linear.Violation
	require.ErrorAs(t, err, &v)
	require.Equal(t, rule, v.Rule, err)
	t.Log(err)
	if rule == "exclusion" {
		// The search must find by itself what the claims show directly.
		all, err := linear.Linearizable(ops, time.Minute)
		require.NoError(t, err)
		require.NotEmpty(t, all)
		t.Log(&all[0])
	}
}
