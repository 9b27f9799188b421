package redlock

import (
	"context"
	"fmt"
)

// An acquire inside of its own lock: with a context that ends with a lock of the same key it
// would wait for itself.

func (r *resource) nested(o op) error {
	return nestedError(fmt.Sprintf("redlock: %v %s: %v", o, quoteKey(r.key), ErrNested))
}

// nestedError is ErrHeld, too: callers who can do without the lock need not know of nesting.
// Its text is about ErrNested alone, since it is not another who holds the lock.
type nestedError string

func (e nestedError) Error() string { return string(e) }

func (e nestedError) Unwrap() []error { return []error{ErrHeld, ErrNested} }

// WithReentry lets a function that locks be called by one that has locked: where the context
// belongs to a lock of the same key that is held (it is that of Do's function or of
// Lock.Context, or derived from it), TryAcquire, Acquire and Do return at once, without asking
// any node, a Lock that counts on that one. It has the same token, fence and end; Extend
// extends the outer lock; Release ends this handle and nothing else. With any other context
// it changes nothing. It is for the inner Mutex; without it such a call fails with ErrNested.
//
// Two goroutines that share such a context are both let in: the lock says that the program has
// it, and not which goroutine. Options of the inner Mutex about the lease have no effect. With
// WithFencing the outer lock must be fenced, too (ErrInvalid). An outer lock that is shared does
// not stand for one that is held alone, nor for a permit (ErrNested). Hooks are not told, All
// does not take part (ErrNested), and an inner lock cannot be handed over (ErrInvalid).
func WithReentry() LockOption { return func(t *terms) { t.reentry = true } }

// covers reports whether who has this lock has also what the terms ask for: a lock held alone
// is as good as a shared one or a permit, and not the other way round.
func (l *Lock) covers(t *terms) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.shared || t.shared && t.permits == l.terms.permits
}

// reenter is an inner lock that counts on the outer one.
func (r *resource) reenter(outer *Lock) (*Lock, error) {
	for outer.outer != nil {
		outer = outer.outer
	}
	if r.terms.fencing && !outer.terms.fencing {
		return nil, fmt.Errorf("redlock: acquire %s: %w: WithFencing inside of a lock without it, which has no token", quoteKey(r.key), ErrInvalid)
	}
	if !outer.covers(&r.terms) {
		return nil, r.nested(opAcquire)
	}
	l := &Lock{resource: r, outer: outer, token: outer.token, value: outer.value, fence: outer.fence}
	l.ctx, l.cancel = context.WithCancelCause(withHeld(outer.Context(), l))
	return l, nil
}
