// Package linear decides whether a history of calls could have come from a lock: what one client was told must fit what all others were told.
//
// Three checks, from the promise itself to the truth of every answer:
//   - [Overlaps]: claims [acquire returned, min(release called, until)) of one key are disjoint;
//   - [Fences]: a grant that began after another had returned has the greater fencing token;
//   - [Linearizable]: there is an order of all calls, each at some instant between its call and its return, that a lock with leases could have
//     answered as it did.
package linear

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/quorumlock/redlock/internal/testing/history"
)

// never is the return of a call that did not come back, because its client was killed.
const never = math.MaxInt64

// Violation is a rule that a history breaks.
type Violation struct {
	Rule string       `json:"rule"` // "history", "exclusion", "fence" or "linear"
	Key  string       `json:"key"`
	Text string       `json:"text"`
	At   int64        `json:"at"` // when it shows, in the history's clock
	Ops  []history.Op `json:"ops"`
}

func (v *Violation) Error() string { return fmt.Sprintf("%s: key %q: %s", v.Rule, v.Key, v.Text) }

// ErrUndecided is returned when the search for an order took longer than it was allowed to.
var ErrUndecided = errors.New("no order found in the time given, and none ruled out")

// Check runs all checks, and returns the first violation as a *Violation, or ErrUndecided if a key took longer than patience.
func Check(ops []history.Op, patience time.Duration) error {
	keys, err := byKey(ops)
	if err != nil {
		return err
	}
	for _, k := range keys {
		if v := slices.Concat(k.overlaps(), k.fences()); len(v) > 0 {
			return &v[0]
		}
		if err := k.linearizable(patience); err != nil {
			return err
		}
	}
	return nil
}

// Overlaps returns every pair of neighbouring claims of a key that overlap.
func Overlaps(ops []history.Op) ([]Violation, error) { return each(ops, key.overlaps) }

// Fences returns every grant whose fencing token is not above that of all grants that had returned when it was called.
func Fences(ops []history.Op) ([]Violation, error) { return each(ops, key.fences) }

// Linearizable returns, for each key, why there is no order of its calls, or nothing. An undecided key is an error.
func Linearizable(ops []history.Op, patience time.Duration) (all []Violation, err error) {
	keys, err := byKey(ops)
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		var v *Violation
		switch err := k.linearizable(patience); {
		case errors.As(err, &v):
			all = append(all, *v)
		case err != nil:
			return all, err
		}
	}
	return all, nil
}

func each(ops []history.Op, check func(key) []Violation) (all []Violation, err error) {
	keys, err := byKey(ops)
	for _, k := range keys {
		all = append(all, check(k)...)
	}
	return all, err
}

// key is what was done with one key. Calls that ask for nothing, failed acquires and extends, are left out: they may be answered so at any time.
type key struct {
	name   string
	grants []*grant // in the order of their returns
}

// grant is an acquisition and what its holder did with it.
type grant struct {
	acquire history.Op
	extends []history.Op // that succeeded
	release *history.Op
	left    *history.Op // the Detach; nil: there was none
	last    int64       // the latest end of validity that its holder was told
}

// claim is what the holder relies on: it ends with the call of release, which promises nothing from then on.
func (g *grant) claim() (from, to int64) {
	to = g.last
	if g.release != nil {
		to = min(to, g.release.Call)
	}
	if g.left != nil {
		to = min(to, g.left.Call)
	}
	return g.acquire.Return, to
}

func byKey(ops []history.Op) ([]key, error) {
	keys := make(map[string]*key)
	grants := make(map[string]*grant)
	broken := func(op history.Op, text string) error {
		return &Violation{Rule: "history", Key: op.Key, Text: text, At: op.Return, Ops: []history.Op{op}}
	}
	for _, op := range ops {
		if op.Kind != history.Acquire || op.Outcome != history.OK {
			continue
		}
		if other := grants[op.Token]; other != nil {
			return nil, &Violation{
				Rule: "history", Key: op.Key, Text: fmt.Sprintf("token %q was granted twice", op.Token), At: op.Return,
				Ops: []history.Op{other.acquire, op},
			}
		}
		if op.Token == "" || op.Return < op.Call {
			return nil, broken(op, "a grant without a token, or that returns before its call: "+describe(op))
		}
		g := &grant{acquire: op, last: op.Until}
		grants[op.Token] = g
		if keys[op.Key] == nil {
			keys[op.Key] = &key{name: op.Key}
		}
		keys[op.Key].grants = append(keys[op.Key].grants, g)
	}
	for _, op := range ops {
		if op.Kind == history.Acquire || (op.Kind == history.Extend || op.Kind == history.Detach) && op.Outcome != history.OK {
			continue
		}
		g := grants[op.Token]
		if g == nil || g.acquire.Key != op.Key {
			return nil, broken(op, "of a lock that nobody was granted: "+describe(op))
		}
		switch op.Kind {
		case history.Extend:
			g.extends = append(g.extends, op)
			g.last = max(g.last, op.Until)
		case history.Release:
			g.addRelease(op)
		case history.Detach:
			g.left = &op
		default:
			return nil, broken(op, fmt.Sprintf("kind %q is none of acquire, extend, release, detach", op.Kind))
		}
	}
	all := make([]key, 0, len(keys))
	for _, k := range keys {
		slices.SortFunc(k.grants, func(a, b *grant) int { return cmp.Compare(a.acquire.Return, b.acquire.Return) })
		all = append(all, *k)
	}
	slices.SortFunc(all, func(a, b key) int { return cmp.Compare(a.name, b.name) })
	return all, nil
}

// addRelease makes one release of all lines about it. A client that may be killed writes that it calls release, as unknown and without a return, and
// later what came of it; a second call of Release is told the first one's result.
func (g *grant) addRelease(op history.Op) {
	if op.Return < op.Call {
		op.Return = never
	}
	old := g.release
	if old == nil {
		g.release = &op
		return
	}
	called := min(old.Call, op.Call)
	if op.Outcome == history.Unknown || old.Outcome != history.Unknown && old.Return <= op.Return {
		op = *old
	}
	op.Call = called
	g.release = &op
}

// span is the time for which a holder relies on the lock.
type span struct {
	*grant
	from, to int64
	holder
}

func (g *grant) span() span {
	from, to := g.claim()
	return span{g, from, to, holder{token: g.acquire.Token, mode: g.acquire.Mode, permit: g.acquire.Permit, of: g.acquire.Permits}}
}

func (k key) overlaps() (all []Violation) {
	var byStart []span
	for _, g := range k.grants {
		byStart = append(byStart, g.span())
	}
	slices.SortStableFunc(byStart, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	var at []span // who holds it then
	for _, s := range byStart {
		if s.to <= s.from {
			continue // over before it was known
		}
		at = slices.DeleteFunc(at, func(o span) bool { return o.to <= s.from })
		var state held
		for _, o := range at {
			state = state.with(o.holder)
		}
		if !state.admits(s.holder) {
			o := at[len(at)-1]
			all = append(all, Violation{
				Rule: "exclusion", Key: k.name, At: s.from, Ops: []history.Op{o.acquire, s.acquire},
				Text: fmt.Sprintf("client %d holds it%s from %s to %s, and client %d is granted it%s at %s (until %s)%s", o.acquire.Client, o.how(),
					clock(o.from), clock(o.to), s.acquire.Client, s.how(), clock(s.from), clock(s.to), others(len(at)-1)),
			})
		}
		at = append(at, s)
	}
	return all
}

// how a lock is held, for people; nothing for one who has it alone.
func (h holder) how() string {
	switch h.mode {
	case history.Shared:
		return " together with others"
	case history.Permit:
		return fmt.Sprintf(" by permit %d of %d", h.permit, h.of)
	default:
		return ""
	}
}

func others(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; besides %d others", n)
}

func (k key) fences() (all []Violation) {
	byCall := slices.Clone(k.grants)
	slices.SortStableFunc(byCall, func(a, b *grant) int { return cmp.Compare(a.acquire.Call, b.acquire.Call) })
	var greatest *grant // of those that had returned
	returned := 0
	for _, g := range byCall {
		if g.acquire.Fence == 0 {
			continue
		}
		for ; returned < len(k.grants) && k.grants[returned].acquire.Return < g.acquire.Call; returned++ {
			if r := k.grants[returned]; r.acquire.Fence > 0 && (greatest == nil || r.acquire.Fence > greatest.acquire.Fence) {
				greatest = r
			}
		}
		if greatest != nil && g.acquire.Fence <= greatest.acquire.Fence {
			all = append(all, Violation{
				Rule: "fence", Key: k.name, At: g.acquire.Return, Ops: []history.Op{greatest.acquire, g.acquire},
				Text: fmt.Sprintf("client %d got %d by %s, and client %d, who called at %s, got %d", greatest.acquire.Client,
					greatest.acquire.Fence, clock(greatest.acquire.Return), g.acquire.Client, clock(g.acquire.Call), g.acquire.Fence),
			})
		}
	}
	return all
}

// expire is the operation that ends a lease: at until, nobody's call.
const expire = "expire"

// step is an operation of the model.
type step struct {
	history.Op
	last int64 // of a release: the latest end of validity that its holder was told
}

// linearizable looks for an order. Time has no part in the search but for the order of calls and returns, hence the operations that end the leases.
func (k key) linearizable(patience time.Duration) error {
	model := porcupine.Model{
		Init:  func() any { return held{} },
		Equal: func(a, b any) bool { return a.(held).equal(b.(held)) },
		Step:  func(state, input, _ any) (bool, any) { return next(state.(held), input.(*step)) },
	}
	var ops []porcupine.Operation
	add := func(op history.Op, last int64) {
		ops = append(ops, porcupine.Operation{ClientId: max(op.Client, 0), Input: &step{op, last}, Call: op.Call, Return: op.Return})
	}
	ends := func(op history.Op) {
		add(history.Op{Client: op.Client, Kind: expire, Key: k.name, Token: op.Token, Call: op.Until, Return: op.Until, Until: op.Until}, 0)
	}
	for _, g := range k.grants {
		add(g.acquire, 0)
		ends(g.acquire)
		for _, e := range g.extends {
			add(e, 0)
			ends(e)
		}
		if g.release != nil {
			add(*g.release, g.last)
		}
		if g.left != nil {
			add(*g.left, 0)
		}
	}
	switch porcupine.CheckOperationsTimeout(model, ops, patience) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("key %q, %d operations: %w", k.name, len(ops), ErrUndecided)
	}
	return k.explain(model, ops, patience)
}

// explain names the first call, by its return, that fits nowhere behind the longest order found.
func (k key) explain(model porcupine.Model, ops []porcupine.Operation, patience time.Duration) *Violation {
	v := &Violation{Rule: "linear", Key: k.name, Text: "no order of the calls explains their answers"}
	_, info := porcupine.CheckOperationsVerbose(model, ops, patience)
	var longest []porcupine.Operation
	for _, partial := range info.PartialLinearizationsOperations()[0] {
		if len(partial) > len(longest) {
			longest = partial
		}
	}
	state, placed := held{}, make(map[*step]bool)
	by := make(map[string]history.Op)
	for _, op := range longest {
		s := op.Input.(*step)
		placed[s] = true
		if _, state = next(state, s); s.Kind == history.Acquire {
			by[s.Token] = s.Op
		}
	}
	var odd *step
	for _, op := range ops {
		if s := op.Input.(*step); !placed[s] && s.Kind != expire && (odd == nil || s.Return < odd.Return) {
			odd = s
		}
	}
	if odd == nil {
		return v
	}
	v.At, v.Ops = odd.Return, []history.Op{odd.Op}
	now := "the lock is free"
	if len(state.holders) > 0 {
		h := state.holders[0]
		now = fmt.Sprintf("client %d holds the lock%s until %s%s", by[h.token].Client, h.how(), clock(h.until), others(len(state.holders)-1))
		v.Ops = []history.Op{by[h.token], odd.Op}
	}
	v.Text = fmt.Sprintf("no order explains %s: in the best one, %s (last fence %d)", describe(odd.Op), now, state.fence)
	return v
}

func describe(op history.Op) string {
	text := fmt.Sprintf("client %d's %s (%s), called %s, returned %s", op.Client, op.Kind, op.Outcome, clock(op.Call), clock(op.Return))
	if op.Until != 0 {
		text += ", until " + clock(op.Until)
	}
	if op.Fence != 0 {
		text += fmt.Sprintf(", fence %d", op.Fence)
	}
	return text
}

// clock writes an instant of the history.
func clock(at int64) string {
	if at == never {
		return "never"
	}
	return time.Duration(at).String()
}
