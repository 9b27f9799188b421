package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/quorumlock/redlock/internal/tick"
)

// Locks are what Mutexes acquired, in the order in which they were given to All. They are
// renewed until they are released or lost. Each is a Lock of its own, with its own token and
// fence; what these methods tell of all of them goes by the one that ends first.
//
// On no Locks, methods that return an error return ErrInvalid, Context panics, and the others
// return zero values.
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
// acquire. Every call on the same locks in the same order returns the same context.
func (ls Locks) Context() context.Context {
	if len(ls) == 0 {
		panic("redlock: Context of no Locks")
	}
	first := ls[0].Context()
	if len(ls) == 1 {
		return first
	}
	for _, l := range ls[1:] {
		l.Context() // is there from now on: no two locks' mutexes are held at once
	}
	return ls[0].contextWith(first, ls[1:])
}

// Extend is Lock.Extend for each of the locks, all at once. Where some fail, the others are
// extended all the same, and the error joins those of all that failed.
func (ls Locks) Extend(ctx context.Context, ttl time.Duration) error {
	if len(ls) == 0 {
		return errNoLocks("extend")
	}
	errs := make([]error, len(ls))
	var all sync.WaitGroup
	for i, l := range ls {
		all.Go(func() {
			if l.check() == nil {
				l.clock.Yield(l.grantedAt.Mono + int64(l.nth)<<48) // as renewNow does
			}
			errs[i] = l.Extend(ctx, ttl)
		})
	}
	all.Wait()
	return inOneLine(errs...)
}

// Release is Lock.Release for each of the locks, all at once. Its error joins those of all that
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

func (ls Locks) releaseAll(ctx context.Context) []error {
	return ls.sendReleases()(ctx)
}

// sendReleases sends all releases. What it returns waits for them, and calls the hooks.
func (ls Locks) sendReleases() (end func(ctx context.Context) []error) {
	errs := make([]error, len(ls))
	for i, l := range ls {
		errs[i] = l.check()
	}
	type release struct {
		round *round
		start tick.Instant
	}
	sent := make([]release, len(ls))
	if at := slices.Index(errs, nil); at >= 0 {
		ls[at].together(func() {
			for i, l := range ls {
				if errs[i] == nil {
					sent[i].round, sent[i].start = l.startRelease(true)
				}
			}
		})
	}
	return func(ctx context.Context) []error {
		// Deferred, so that a hook that panics does not keep the other releases from their ends.
		for i, l := range slices.Backward(ls) {
			if errs[i] == nil {
				defer func() { errs[i] = l.endRelease(ctx, sent[i].round, sent[i].start) }()
			}
		}
		return errs
	}
}

// withLost is both errors of whileHeld in one.
func withLost(lost, err error) error {
	if lost != nil && !errors.Is(err, ErrLost) {
		return inOneLine(err, lost)
	}
	return err
}

// whileHeld calls fn with a context that ends with ctx, or when the first of the locks is
// lost, and releases them all. It returns fn's error as it is, and beside it why the first of
// the locks was lost; nil if none was.
func (ls Locks) whileHeld(ctx context.Context, fn func(ctx context.Context) error) (lost, err error) {
	inner, cancel := ls.within(ctx)
	// Deferred one by one, so that a panic or Goexit, in fn or in a hook, skips nothing and
	// then goes on.
	defer cancel(ErrReleased)
	defer func() {
		tell, why := ls.lost()
		// Sent before a hook is called, which may take its time: another may want the lock.
		end := ls.sendReleases()
		defer func() {
			for _, rerr := range end(ctx) {
				if lost == nil && errors.Is(rerr, ErrNotHeld) {
					lost = fmt.Errorf("redlock: %w: %w", ErrLost, within{rerr})
				}
			}
		}()
		lost = why
		tell()
	}()
	return nil, fn(inner)
}

// again is whileHeld inside of it, and leaves the releases to the one outside.
func (ls Locks) again(ctx context.Context, fn func(ctx context.Context) error) (lost, err error) {
	inner, cancel := ls.within(ctx)
	defer cancel(nil)
	err = fn(inner)
	tell, lost := ls.lost()
	tell()
	return lost, err
}

// within is a context that ends with ctx, or when the first of the locks does, and belongs
// to them.
func (ls Locks) within(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	held := ls.Context()
	inner, cancel := context.WithCancelCause(withHeld(ctx, ls...))
	stop := context.AfterFunc(held, func() { cancel(context.Cause(held)) })
	return inner, func(cause error) {
		stop()
		cancel(cause)
	}
}

// lost returns why the first of the locks was lost that was, or nil; tell calls its hook, if that
// was not known.
func (ls Locks) lost() (tell func(), why error) {
	for _, l := range ls {
		found, why := l.lost()
		switch {
		case found:
			return func() { l.tellLost(why) }, why
		case why != nil:
			return func() {}, why
		}
	}
	return func() {}, nil
}
