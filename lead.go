package redlock

import (
	"context"
	"errors"
)

// Lead keeps one of its callers at work. It waits for the lock, and calls fn with it as
// Do does. When the lock is lost while fn runs, or WithMaxHold ends its term, it waits for fn to
// return, whatever that returns, pauses for Options.RetryMin, and waits for the lock again.
//
// It returns when fn returns before its context has ended, with fn's error or nil, which is how a
// leader resigns: also with an error that wraps the ErrLost of another lock. It returns when ctx
// ends, also with what fn returned if it was running, so that only ctx.Err tells this from a
// resignation; and with Acquire's error where waiting does not help, or where it waited for a term for
// longer than WithMaxWait. What is left on the nodes is what Do leaves.
//
// fn's context ends when the lock is lost, and fn has to stop then: the next leader may be at
// work already. With WithFencing, Lock.Fence is the number of the term, by which a resource
// refuses a leader that was paused.
func (m *Mutex) Lead(ctx context.Context, fn func(ctx context.Context, lock *Lock) error) error {
	if fn == nil {
		return m.Do(ctx, nil) // which says so
	}
	for {
		// Both are judged by the lock of this term: fn may well return the loss of another lock.
		ended := false // by WithMaxHold the lock is not lost yet, and yet it is no resignation
		lost, err := m.whileHeld(ctx, func(ctx context.Context, lock *Lock) error {
			err := fn(ctx, lock)
			ended = errors.Is(context.Cause(lock.Context()), ErrLost)
			return err
		})
		if ctx.Err() != nil || !ended && lost == nil {
			return withLost(lost, err)
		}
		_ = m.pause(ctx, m.opts.RetryMin) // if that ends early, the next term says why
	}
}
