package linear_test

import (
	"testing"

	"github.com/quorumlock/redlock/internal/testing/history"
)

func shared(op history.Op) history.Op {
	op.Mode = history.Shared
	return op
}

func permit(op history.Op, number, of int) history.Op {
	op.Mode, op.Permit, op.Permits = history.Permit, number, of
	return op
}

func adopted(op history.Op, from string) history.Op {
	op.From = from
	return op
}

// left is what a client writes before it detaches: it relies on the lock no more.
func left(client int, token string, call int64) history.Op {
	return history.Op{Client: client, Kind: history.Release, Key: "k", Token: token, Call: call, Outcome: history.Unknown}
}

func detached(client int, token string, call, ret int64) history.Op {
	return history.Op{Client: client, Kind: history.Detach, Key: "k", Token: token, Call: call, Return: ret, Outcome: history.OK}
}

func TestHistoriesOfLocksThatSeveralHold(t *testing.T) {
	for _, c := range []struct {
		name string
		rule string // that is broken; empty: none
		ops  []history.Op
	}{
		{"readers together", "", []history.Op{
			shared(acquired(1, "a", 0, 5, 100)), shared(acquired(2, "b", 1, 6, 110)), released(1, "a", 20, 21, history.OK),
			shared(acquired(3, "c", 30, 31, 130)), extended(2, "b", 90, 91, 190), released(3, "c", 95, 96, history.OK),
			released(2, "b", 150, 151, history.OK), acquired(4, "d", 149, 152, 250),
		}},
		{"a writer beside a reader", "exclusion", []history.Op{shared(acquired(1, "a", 0, 5, 100)), acquired(2, "b", 6, 7, 110)}},
		{"a reader beside a writer", "exclusion", []history.Op{acquired(1, "a", 0, 5, 100), shared(acquired(2, "b", 6, 7, 110))}},
		{"a writer beside the second reader", "exclusion", []history.Op{
			shared(acquired(1, "a", 0, 5, 100)), shared(acquired(2, "b", 1, 6, 300)), acquired(3, "c", 110, 120, 200),
		}},
		{"an extend of a reader whose lease was over", "linear", []history.Op{
			shared(acquired(1, "a", 0, 5, 100)), shared(acquired(2, "b", 1, 6, 300)), extended(1, "a", 101, 102, 200),
		}},
		{"permits", "", []history.Op{
			permit(acquired(1, "a", 0, 5, 100), 1, 2), permit(acquired(2, "b", 0, 5, 100), 2, 2), released(1, "a", 10, 11, history.OK),
			permit(acquired(3, "c", 9, 12, 110), 1, 2),
		}},
		{"a number twice", "exclusion", []history.Op{permit(acquired(1, "a", 0, 5, 100), 1, 2), permit(acquired(2, "b", 0, 6, 100), 1, 2)}},
		{"more permits than there are", "exclusion", []history.Op{
			permit(acquired(1, "a", 0, 5, 100), 1, 2), permit(acquired(2, "b", 0, 6, 100), 2, 2), permit(acquired(3, "c", 0, 7, 100), 3, 2),
		}},
		{"the greatest number of permits counts", "", []history.Op{
			permit(acquired(1, "a", 0, 5, 100), 1, 2), permit(acquired(2, "b", 0, 6, 100), 2, 2), permit(acquired(3, "c", 0, 7, 100), 3, 3),
		}},
		{"alone beside a permit", "exclusion", []history.Op{permit(acquired(1, "a", 0, 5, 100), 1, 2), acquired(2, "b", 0, 6, 100)}},

		{"detached and adopted", "", []history.Op{
			acquired(1, "a", 0, 5, 100), detached(1, "a", 10, 20), adopted(acquired(2, "b", 21, 25, 125), "a"), released(2, "b", 30, 31, history.OK),
		}},
		{"about to be detached, and lost", "", []history.Op{acquired(1, "a", 0, 5, 100), left(1, "a", 10), acquired(2, "b", 12, 15, 115)}},
		{"adopted from one who was killed", "", []history.Op{acquired(1, "a", 0, 5, 50), adopted(acquired(2, "b", 70, 75, 175), "a")}},
		{"detached, and not adopted", "", []history.Op{
			acquired(1, "a", 0, 5, 100), detached(1, "a", 10, 20), acquired(2, "b", 21, 200, 300),
		}},
		{"another had it in between", "linear", []history.Op{
			acquired(1, "a", 0, 5, 100), detached(1, "a", 10, 20), acquired(2, "b", 110, 120, 200), released(2, "b", 130, 140, history.OK),
			adopted(acquired(3, "c", 150, 160, 260), "a"),
		}},
		{"adopted while another has it", "exclusion", []history.Op{
			acquired(1, "a", 0, 5, 100), detached(1, "a", 10, 20), acquired(2, "b", 110, 120, 200), adopted(acquired(3, "c", 150, 160, 260), "a"),
		}},
		{"adopted twice", "exclusion", []history.Op{
			acquired(1, "a", 0, 5, 100), detached(1, "a", 10, 20), adopted(acquired(2, "b", 21, 25, 125), "a"), adopted(acquired(3, "c", 21, 26, 125), "a"),
		}},
		{"adopted after its release", "linear", []history.Op{
			acquired(1, "a", 0, 5, 100), released(1, "a", 10, 20, history.OK), adopted(acquired(2, "b", 21, 25, 125), "a"),
		}},
		{"detached after the lease", "linear", []history.Op{acquired(1, "a", 0, 5, 100), detached(1, "a", 110, 120)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			breaks(t, c.ops, c.rule)
		})
	}
}
