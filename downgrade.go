package redlock

import (
	"context"
	"fmt"
)

// Downgrade turns an exclusive lock into a shared one, without a gap: others may share it from
// now on, and no other client holds it exclusively in between. From the call on the holder must
// not rely on exclusion, whatever is returned. The lease lasts for the lock's TTL from now, and
// Until does not become earlier.
//
// It fails as Extend does, and may be called again. The lock is then shared on some nodes and
// exclusive on others, which keeps out exclusive locks as before, and perhaps some shared ones;
// the next extend or renewal settles that. It fails with ErrInvalid, and asks no node, if the
// lock was acquired by Mutex.Shared or Redlock.Semaphore, or has WithMinHold.
//
// The lock of a fenced Mutex keeps its token: no fenced client has the lock before it is
// released.
func (l *Lock) Downgrade(ctx context.Context) error {
	if err := l.check(); err != nil {
		return err
	}
	if l.terms.shared {
		return fmt.Errorf("redlock: %w downgrade of %s: it was not held alone", ErrInvalid, quoteKey(l.key))
	}
	if l.terms.minHold > 0 {
		return fmt.Errorf("redlock: %w downgrade of %s: WithMinHold is for locks that are held alone", ErrInvalid, quoteKey(l.key))
	}
	l.mu.Lock()
	l.shared = l.shared || l.over == nil
	l.mu.Unlock()
	return l.extend(ctx, l.terms.TTL)
}
