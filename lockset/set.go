package lockset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/quorumlock/redlock"
)

// Member is a lock that a set may have: an exclusive or a shared one, or a permit of a semaphore.
type Member interface {
	Key() string
	Acquire(ctx context.Context) (*redlock.Lock, error)
	TryAcquire(ctx context.Context) (*redlock.Lock, error)
}

// Set describes several locks that are wanted together. It is made by New, has no state of its own, and
// serves any number of goroutines.
type Set struct {
	members []Member // in the order of their keys
	place   []int    // of each among those given to New
	err     error    // a broken rule
}

// New describes a set of locks, each with its own options. If there is none, or one is nil, or two have the same key,
// the methods fail with redlock.ErrInvalid, before they ask any node.
func New(members ...Member) *Set {
	s := &Set{}
	if s.err = broken(members); s.err != nil {
		return s
	}
	for i := range members {
		s.place = append(s.place, i)
	}
	slices.SortFunc(s.place, func(a, b int) int { return strings.Compare(members[a].Key(), members[b].Key()) })
	for _, i := range s.place {
		s.members = append(s.members, members[i])
	}
	return s
}

var errEmpty = fmt.Errorf("lockset: %w set: it has no members", redlock.ErrInvalid)

func broken(members []Member) error {
	seen := make(map[string]bool, len(members))
	for i, m := range members {
		if v := reflect.ValueOf(m); m == nil || v.Kind() == reflect.Pointer && v.IsNil() {
			return fmt.Errorf("lockset: %w set: member %d is nil", redlock.ErrInvalid, i)
		}
		key := m.Key()
		if seen[key] {
			return fmt.Errorf("lockset: %w set: %.128q is there twice", redlock.ErrInvalid, key)
		}
		seen[key] = true
	}
	return nil
}

// TryAcquire asks for all locks once, at the same time, and never waits for a holder. Unlike those of
// Mutex.TryAcquire, the locks are renewed until they are released or lost.
//
// If one is refused the others are released. It then fails as TryAcquire of that lock does; of several
// that were refused, of the one whose key is least. The error names the key, as does the
// *redlock.QuorumError in it. Of sets that ask for the same locks at the same moment each may be
// refused one; where one must succeed, use Acquire with a deadline.
func (s *Set) TryAcquire(ctx context.Context) (Locks, error) {
	return s.acquire(ctx, false)
}

// Acquire waits until it has all locks, or ctx ends. Unlike those of Mutex.Acquire, the locks are renewed, also while
// it waits for others, until they are released or lost. Most callers want Do instead.
//
// It fails as Acquire does for the lock that it waited for, with an error that names the key. A WithMaxWait of one
// lock bounds each wait for that one. After a failure the locks that it held are released; it returns when that is
// confirmed, and after NodeTimeout at the latest. Hooks are called for each lock by itself, also for one that was
// acquired and given back.
func (s *Set) Acquire(ctx context.Context) (Locks, error) {
	return s.acquire(ctx, true)
}

// Do acquires all locks, calls fn, and releases them, also when fn panics. It is Do of a Mutex for several
// locks: fn's context ends with ctx, and with cause redlock.ErrLost when the first of them is lost. It
// belongs to all of them, so redlock.Held finds each. redlock.WithReentry has no effect: inside one of its locks
// it fails with redlock.ErrNested.
//
// It returns Acquire's error if fn was not called; otherwise fn's error and, if one of the locks
// was lost meanwhile, one for which errors.Is(err, redlock.ErrLost). A release that not enough nodes
// confirmed is no error here; Hooks.Released is called with it.
func (s *Set) Do(ctx context.Context, fn func(ctx context.Context, locks Locks) error) (err error) {
	if fn == nil {
		return fmt.Errorf("lockset: do: %w fn: it is nil", redlock.ErrInvalid)
	}
	locks, err := s.Acquire(ctx)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	inner, stop := locks.Within(ctx)
	defer stop()
	defer end(redlock.ErrReleased)
	defer func() {
		lost := locks.lost()
		for _, rerr := range locks.each(ctx, (*redlock.Lock).Release) {
			if lost == nil && errors.Is(rerr, redlock.ErrNotHeld) {
				lost = fmt.Errorf("lockset: %w: %w", redlock.ErrLost, rerr)
			}
		}
		switch {
		case lost == nil || errors.Is(err, redlock.ErrLost):
		case err == nil:
			err = lost
		default:
			err = errors.Join(err, lost)
		}
	}()
	return fn(inner, locks)
}

// acquire asks for all that is missing until nothing is.
func (s *Set) acquire(ctx context.Context, wait bool) (_ Locks, err error) {
	if len(s.members) == 0 { // also the zero Set
		return nil, cmp.Or(s.err, errEmpty)
	}
	held := make(Locks, len(s.members)) // in the order of the keys; nil: not held
	complete := false
	defer func() { // also where a hook does not return
		if !complete {
			_ = held.giveBack(ctx)
		}
	}()
	busy := -1
	if wait {
		busy = slices.IndexFunc(s.members, contended)
	}
	if wait && len(s.members) == 1 {
		busy = 0 // its first attempt is that of TryAcquire
	}
	for turn := 0; ; turn++ {
		var refused error
		if busy < 0 {
			busy, refused = s.tryMissing(ctx, held)
			switch {
			case refused == nil:
				complete = true
				return s.asGiven(held), nil
			case !wait:
				return nil, refused
			}
		}
		if err := s.waitFor(ctx, held, busy, turn); err != nil {
			if errors.Is(refused, redlock.ErrHeld) && !errors.Is(err, redlock.ErrHeld) && ctx.Err() != nil {
				err = fmt.Errorf("%w; before: %w", err, refused)
			}
			return nil, err
		}
		busy = -1
	}
}

// contended reports whether others are known to wait for a lock. A call that asks for it at once may have it in the
// moment between a release and the claim of the waiter whose turn it is, again and again.
func contended(m Member) bool {
	c, ok := m.(interface{ Contended() bool })
	return ok && c.Contended()
}

// tryMissing asks for all locks that are not held, at once. If that leaves some missing, it returns the first that
// is, and why.
func (s *Set) tryMissing(ctx context.Context, held Locks) (busy int, err error) {
	errs := make([]error, len(held))
	together(len(held), func(i int) {
		if held[i] == nil {
			held[i], errs[i] = renewed(s.members[i].TryAcquire(ctx))
		}
	})
	for i, err := range errs {
		if err != nil {
			return i, err
		}
	}
	for i, l := range held {
		if l.Validity() <= 0 || l.Context().Err() != nil { // it ended while the set waited for another
			return i, fmt.Errorf("lockset: acquire %.128q: %w before the others were granted", l.Key(), redlock.ErrExpired)
		}
	}
	return -1, nil
}

// waitFor waits for one lock. It keeps none whose key is greater, or two sets might wait for each other, and in the
// first wait, which may be long, it keeps none at all. If it never kept any, a set of locks that are always busy
// would starve.
func (s *Set) waitFor(ctx context.Context, held Locks, busy, turn int) (err error) {
	keep := busy
	if turn == 0 {
		keep = 0
	}
	back := slices.Clone(held[keep:])
	clear(held[keep:])
	together(2, func(i int) {
		if i == 0 {
			_ = back.giveBack(ctx)
		} else {
			held[busy], err = renewed(s.members[busy].Acquire(ctx))
		}
	})
	return err
}

func renewed(l *redlock.Lock, err error) (*redlock.Lock, error) {
	if err == nil {
		l.Renew()
	}
	return l, err
}

// asGiven are the locks in the order in which their members were given to New.
func (s *Set) asGiven(held Locks) Locks {
	all := make(Locks, len(held))
	for i, l := range held {
		all[s.place[i]] = l
	}
	return all
}
