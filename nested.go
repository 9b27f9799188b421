package redlock

import (
	"context"
	"fmt"

	"github.com/quorumlock/redlock/internal/protocol"
)

// An acquire inside of its own lock: with a context that ends with a lock of the same key it
// would wait for itself.

// WithReentry lets a function that acquires the lock be called by one that already holds it: if the context
// of Do or Lead belongs to a held lock of the same key, they ask no node and call their function at once,
// with that Lock. It is for the inner Mutex; without it such a call fails with ErrNested. See [Held].
//
// The outer lock must cover what the inner Mutex describes: an exclusive lock covers all, any other its own
// kind, and WithFencing needs a lock that has it. Otherwise Do fails with ErrNested.
//
// Two goroutines that share such a context are both let in. Release of the Lock releases the
// outer lock.
func WithReentry() LockOption { return func(t *draft) { t.reentry = true } }

// Held returns the lock with the given key to which ctx belongs, and whether there is one that is
// still held: ctx is that of Do's function or of Lock.Context, or derived from it. key is that of
// Lock.Key, without Options.KeyPrefix. Of several it is the innermost: Held does not tell Redlocks
// apart that use the same key, nor an exclusive lock from a shared one or a permit. It asks no node.
//
// It is for functions that are called under a lock and were not given it: for its Fence, which
// panics if the lock was acquired without WithFencing, or to return an error where the caller should
// have locked.
func Held(ctx context.Context, key string) (*Lock, bool) {
	l := innermost(ctx, func(l *Lock) bool { return l.key == key })
	return l, l != nil
}

func (l *Lock) isOf(r *resource) bool { return l.nodeSet == r.nodeSet && l.name == r.name }

// checkNested returns ErrNested if the context belongs to the lock that is to be acquired. A
// holder of a permit may well acquire another one, unless the same one is asked for.
func checkNested(ctx context.Context, r *resource) error {
	another := func(l *Lock) bool { return r.terms.permits > 1 && l.terms.permits > 1 && !r.terms.reentry }
	if innermost(ctx, func(l *Lock) bool { return l.isOf(r) && !another(l) }) == nil {
		return nil
	}
	return fmt.Errorf("redlock: %v %s: %w", protocol.OpAcquire, quoteKey(r.key), ErrNested)
}

// covering is the lock that the context belongs to, if it has all that the terms ask for.
func covering(ctx context.Context, r *resource) *Lock {
	return innermost(ctx, func(l *Lock) bool {
		if !l.isOf(r) || r.terms.fencing && !l.terms.fencing {
			return false
		}
		return !l.terms.shared || r.terms.shared && r.terms.permits == l.terms.permits
	})
}
