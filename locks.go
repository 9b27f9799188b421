package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Locks are what Mutexes acquired, in the order in which they were given to All. They are
// renewed until they are released or lost. Each is a Lock of its own, with its own token and
// fence; what these methods tell of all of them goes by the one that ends first.
//
// On no Locks, methods that return an error return ErrInvalid, and Context panics.
type Locks []*Lock

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

// Context returns a context that ends when the first lock does, with the cause that
// Lock.Context of that lock has, and that carries the values of the context given to the
// acquire.
func (ls Locks) Context() context.Context {
	if len(ls) == 0 {
		panic("redlock: Context of no Locks")
	}
	first := ls[0].Context()
	if len(ls) == 1 {
		return first
	}
	ctx, cancel := context.WithCancelCause(withHeld(first, ls[1:]...))
	endWith := func(other context.Context) { context.AfterFunc(other, func() { cancel(context.Cause(other)) }) }
	for _, l := range ls[1:] {
		endWith(l.Context())
	}
	return ctx
}

// Extend is Lock.Extend for each of the locks, all at once. Where some fail, the others are
// extended all the same, and the error is that of all that failed.
func (ls Locks) Extend(ctx context.Context, ttl time.Duration) error {
	if len(ls) == 0 {
		return errNoLocks("extend")
	}
	errs := make([]error, len(ls))
	var all sync.WaitGroup
	for i, l := range ls {
		all.Go(func() { errs[i] = l.Extend(ctx, ttl) })
	}
	all.Wait()
	return inOneLine(errs...)
}

// Release is Lock.Release for each of the locks, all at once. Its error is that of all that
// failed.
func (ls Locks) Release(ctx context.Context) error {
	if len(ls) == 0 {
		return errNoLocks("release")
	}
	return inOneLine(ls.releaseAll(ctx)...)
}

func errNoLocks(what string) error {
	return fmt.Errorf("redlock: %s: %w Locks: there are none", what, ErrInvalid)
}

// releaseAll sends all releases before it waits for any of them.
func (ls Locks) releaseAll(ctx context.Context) []error {
	errs := make([]error, len(ls))
	for i, l := range ls {
		errs[i] = l.check()
	}
	at := slices.IndexFunc(errs, func(err error) bool { return err == nil })
	if at < 0 {
		return errs
	}
	type release struct {
		round *round
		start instant
	}
	sent := make([]release, len(ls))
	ls[at].together(func() {
		for i, l := range ls {
			if errs[i] == nil {
				sent[i].round, sent[i].start = l.startRelease(true)
			}
		}
	})
	// Deferred, so that a hook that panics does not keep the other releases from their ends.
	for i, l := range slices.Backward(ls) {
		if errs[i] == nil {
			defer func() { errs[i] = l.endRelease(ctx, sent[i].round, sent[i].start) }()
		}
	}
	return errs
}

// whileHeld calls fn with a context that ends with ctx, or when the first of the locks is
// lost, and releases them all.
func (ls Locks) whileHeld(ctx context.Context, fn func(ctx context.Context) error) (err error) {
	held := ls.Context()
	inner, cancel := context.WithCancelCause(withHeld(ctx, ls...))
	stop := context.AfterFunc(held, func() { cancel(context.Cause(held)) })
	// Deferred one by one, so that a panic or Goexit, in fn or in a hook, skips nothing and
	// then goes on.
	defer func() {
		stop()
		cancel(ErrReleased)
	}()
	var lost error
	defer func() {
		for _, rerr := range ls.releaseAll(ctx) {
			if lost == nil && errors.Is(rerr, ErrNotHeld) {
				lost = fmt.Errorf("redlock: %w: %w", ErrLost, within{rerr})
			}
		}
		if lost != nil && !errors.Is(err, ErrLost) {
			err = inOneLine(err, lost)
		}
	}()
	defer func() { lost = ls.lost() }()
	return fn(inner)
}

// lost returns why the first of the locks was lost that was, or nil.
func (ls Locks) lost() error {
	for _, l := range ls {
		if err := l.lost(); err != nil {
			return err
		}
	}
	return nil
}
