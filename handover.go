package redlock

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// HandOver gives up this handle without releasing the lock, for another process to go on
// with: it extends the lease to ttl from now, which is how long that process has time, and
// returns the token to pass to Mutex.Adopt there. ttl follows the rules of Extend, and the
// lease never gets shorter.
//
// On success the handle is over as if released: Validity is 0, its context ends with
// ErrReleased, it is not renewed, and Release does nothing and returns nil.
// Hooks.Released is told. If nobody adopts the lock it ends by its lease. Whoever has the
// token can take the lock over or end it (ForceRelease), so treat it as a secret.
//
// It fails as Extend does, and then nothing is handed over: the handle goes on as after an
// Extend that failed. It fails with ErrInvalid, and asks no node, for shared locks and
// permits, after Downgrade, and for an inner lock of WithReentry.
func (l *Lock) HandOver(ctx context.Context, ttl time.Duration) (token string, err error) {
	if err := l.check(); err != nil {
		return "", err
	}
	if err := invalid("hand-over of "+quoteKey(l.key), brokenTTL("ttl", ttl, l.opts)); err != nil {
		return "", err
	}
	if l.outer != nil {
		return "", fmt.Errorf("redlock: hand over %s: %w: an inner lock of WithReentry, hand over the outer one", quoteKey(l.key), ErrInvalid)
	}
	l.mu.Lock()
	shared := l.shared
	l.mu.Unlock()
	if shared {
		return "", fmt.Errorf("redlock: hand over %s: %w: only a lock that is held alone can be handed over, and this one is %s", quoteKey(l.key), ErrInvalid, l.terms.mode(true))
	}
	return l.handOver(ctx, ttl)
}

func (l *Lock) handOver(ctx context.Context, ttl time.Duration) (token string, err error) {
	start := l.clock.now()
	r := new(round)
	lost, err := l.tryExtend(ctx, r, start, ttl)
	l.tellExtended(ctx, r, start, ttl, false, lost, err)
	if err != nil {
		return "", err
	}
	if err := l.leave(r); err != nil {
		return "", err
	}
	l.tellReleased(ctx, l.terms.mode(false), start, l.clock.now(), nil, nil)
	return l.token, nil
}

// leave ends the handle and leaves the keys, but for what may still land: a SET that was not
// granted, or one that put the key back, is taken back where the extend did not find the key.
// Nobody would do so later, since who adopts the lock knows nothing of it.
func (l *Lock) leave(extended *round) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over != nil {
		return fmt.Errorf("redlock: hand over %s: %w", quoteKey(l.key), within{l.over})
	}
	now := l.clock.now()
	l.finish(now, errWasReleased)
	l.release = releaseDone
	l.prepareRelease(now, false)
	for i := range l.nodes {
		unsure := !l.granted(i)
		mayLand := l.mayLand(i)
		found := extended.vote(i) == VoteGranted
		if found && unsure && i == l.arbiter && l.entry != "" {
			// What the extend found is what was reserved for us, and our entry is in the line
			// still. A release of no value takes it out and leaves the key alone.
			l.releasing.queueReq.value = ""
			found = false
		}
		if mayLand && !found {
			l.lane(i).takeBack(l.addressRelease(i, ifPlaced), now.mono)
		}
	}
	return nil
}

// Adopt goes on with a lock that another process held, by its token: the one that HandOver
// returned, or the one of a process that wrote it down (Lock.Token) and was killed since. The
// lock is held all the while, and is held under a new token afterwards: what the former
// holder still sends has no effect. It lasts for the Mutex's TTL from now. To release a lock
// from elsewhere, use ForceRelease.
//
// Adopt before the lease ends, which is what HandOver's ttl is for. Afterwards Adopt fails with
// ErrNotHeld, with one exception: requests of the former holder that were held up, or delivered
// twice, may have put its value back on a majority of nodes. Then it succeeds although others may
// have had the lock in between.
//
// Whoever calls it must know that the former holder has stopped: one that was only paused
// believes in its lock until its own Until. With WithFencing, Adopt returns a greater fence,
// and the resource can refuse the former holder.
//
// It asks all nodes once. It fails with ErrNotHeld if so many nodes have another's key or none
// that no majority is left, with ErrInvalid for a token that is none, and otherwise as
// TryAcquire does. After a failure the lock may be gone: what had changed hands already is
// released, and the rest ends by its lease. The same is true if two adopt a lock at the same
// moment; never do both get it.
func (m *Mutex) Adopt(ctx context.Context, token string) (*Lock, error) {
	if err := m.check(ctx, opAdopt); err != nil {
		return nil, err
	}
	if m.terms.shared {
		return nil, fmt.Errorf("redlock: adopt %s: %w: only a lock that is held alone can be adopted, and this Mutex is %s", quoteKey(m.key), ErrInvalid, m.terms.mode(true))
	}
	if !isToken(token) {
		return nil, fmt.Errorf("redlock: adopt %s: %w token: it has %d bytes, and a token is %d hexadecimal digits, as Lock.Token and HandOver return it",
			quoteKey(m.key), ErrInvalid, len(token), tokenLen)
	}
	a := acquisition{resource: &m.resource, queues: m.queues, renewer: m.renewer, caller: ctx, ctx: ctx, adopts: token}
	return a.acquire()
}

func isToken(s string) bool {
	return len(s) == tokenLen && strings.Trim(s, "0123456789abcdef") == ""
}
