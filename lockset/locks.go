package lockset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/quorumlock/redlock"
)

// Locks are several locks that are held, in the order in which their members were given to New. Each is a lock of its
// own, with its own token and fence: check each fence at what its key protects; what these methods tell of all goes
// by the one that ends first.
type Locks []*redlock.Lock

// Within returns a context that ends with ctx, whose values it carries, or with the first of the locks,
// and that belongs to all of them: it is redlock's Lock.Within for several. Call the CancelFunc when the
// work is done.
func (ls Locks) Within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	for _, l := range ls {
		inner, stop := l.Within(ctx)
		outer := cancel
		ctx, cancel = inner, func() {
			stop()
			outer()
		}
	}
	return ctx, cancel
}

// Until returns the earliest end of validity among the locks.
func (ls Locks) Until() time.Time {
	var first time.Time
	for i, l := range ls {
		if until := l.Until(); i == 0 || until.Before(first) {
			first = until
		}
	}
	return first
}

// Validity returns what remains until the first lock ends; zero or less when one is over.
func (ls Locks) Validity() time.Duration {
	var least time.Duration
	for i, l := range ls {
		if left := l.Validity(); i == 0 || left < least {
			least = left
		}
	}
	return least
}

// Extend is redlock's Lock.Extend for each lock, at the same time. Where some fail, the others are extended
// all the same, and the error joins those of all that failed.
func (ls Locks) Extend(ctx context.Context, ttl time.Duration) error {
	return errors.Join(ls.each(ctx, func(l *redlock.Lock, ctx context.Context) error { return l.Extend(ctx, ttl) })...)
}

// Release is redlock's Lock.Release for each lock, at the same time. Its error joins those of all that failed.
func (ls Locks) Release(ctx context.Context) error {
	return errors.Join(ls.each(ctx, (*redlock.Lock).Release)...)
}

// giveBack releases locks under which nothing was done; nil ones are skipped.
func (ls Locks) giveBack(ctx context.Context) error {
	held := slices.DeleteFunc(slices.Clone(ls), func(l *redlock.Lock) bool { return l == nil })
	return errors.Join(held.each(ctx, (*redlock.Lock).ReleaseUnused)...)
}

// each is what a method returns for each of the locks, called for all at the same time.
func (ls Locks) each(ctx context.Context, do func(*redlock.Lock, context.Context) error) []error {
	errs := make([]error, len(ls))
	together(len(ls), func(i int) { errs[i] = do(ls[i], ctx) })
	return errs
}

// lost returns why the first lock was lost that was; nil if all are held, or were released.
func (ls Locks) lost() error {
	for _, l := range ls {
		if l.Validity() > 0 {
			continue
		}
		switch cause := context.Cause(l.Context()); {
		case cause == nil: // the timer is late that ends it
			return fmt.Errorf("lockset: %w: %w: %.128q", redlock.ErrLost, redlock.ErrExpired, l.Key())
		case errors.Is(cause, redlock.ErrLost):
			return cause
		}
	}
	return nil
}
