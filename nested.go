package redlock

import (
	"context"
	"fmt"
	"time"
)

// Locks that a context belongs to. Do's function and Lock.Context have a context that ends
// with the lock, so an acquire of the same key with it would wait for itself.

// heldIn is a lock that a context belongs to, and those around it.
type heldIn struct {
	lock   *Lock
	around *heldIn
}

type heldKey struct{}

// withHeld is a context that belongs to these locks, too.
func withHeld(ctx context.Context, locks ...*Lock) context.Context {
	h, _ := ctx.Value(heldKey{}).(*heldIn)
	for _, l := range locks {
		h = &heldIn{l, h}
	}
	return context.WithValue(ctx, heldKey{}, h)
}

// heldBy is the lock of the same key that the context belongs to, if it is held still.
func (r *resource) heldBy(ctx context.Context) *Lock {
	h, _ := ctx.Value(heldKey{}).(*heldIn)
	for ; h != nil; h = h.around {
		if h.lock.nodeSet == r.nodeSet && h.lock.name == r.name && h.lock.Validity() > 0 {
			return h.lock
		}
	}
	return nil
}

func (r *resource) nested(o op) error {
	// It is held, so callers who can do without the lock need not know of nesting.
	return fmt.Errorf("redlock: %v %s: %w: %w", o, quoteKey(r.key), ErrHeld, ErrNested)
}

// WithReentry lets a function that locks be called by one that has locked: where the context
// belongs to a lock of the same key that is held (it is that of Do's function or of
// Lock.Context, or derived from it), TryAcquire, Acquire and Do return at once, without asking
// any node, a Lock that counts on that one. It has the same token, fence and end; Extend
// extends the outer lock; Release ends this handle and nothing else. With any other context
// it changes nothing. It is for the inner Mutex; without it such a call fails with ErrNested.
//
// Two goroutines that share such a context are both let in: the lock says that the program has
// it, and not which goroutine. Options of the inner Mutex about the lease have no effect. With
// WithFencing the outer lock must be fenced, too (ErrInvalid). Hooks are not told, All does
// not take part (ErrNested), and an inner lock cannot be handed over (ErrInvalid).
func WithReentry() LockOption { return func(t *terms) { t.reentry = true } }

// reenter is an inner lock that counts on the outer one.
func (r *resource) reenter(outer *Lock) (*Lock, error) {
	for outer.outer != nil {
		outer = outer.outer
	}
	if r.terms.fencing && !outer.terms.fencing {
		return nil, fmt.Errorf("redlock: acquire %s: %w: WithFencing inside of a lock without it, which has no token", quoteKey(r.key), ErrInvalid)
	}
	l := &Lock{resource: r, outer: outer, token: outer.token, value: outer.value, fence: outer.fence}
	l.ctx, l.cancel = context.WithCancelCause(withHeld(outer.Context(), l))
	return l, nil
}

// endInner ends the handle of an inner lock.
func (l *Lock) endInner() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over == nil {
		l.over, l.until = errWasReleased, l.clock.now()
		l.cancel(errWasReleased)
	}
}

// ended is why an inner handle was ended, nil if it was not, and when.
func (l *Lock) ended() (instant, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until, l.over
}

func (l *Lock) innerUntil() time.Time {
	until := l.outer.Until()
	if end, over := l.ended(); over != nil && end.time.Before(until) {
		return end.time
	}
	return until
}

func (l *Lock) innerValidity() time.Duration {
	left := l.outer.Validity()
	if end, over := l.ended(); over != nil {
		return min(left, l.clock.now().until(end))
	}
	return left
}
