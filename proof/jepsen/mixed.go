package jepsen

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/history"
	"github.com/quorumlock/redlock/lockset"
)

// mixed is the kind of locks that are held in all ways that there are: alone, shared, by permits, in sets, detached and adopted. They
// protect nothing: what is checked is what clients were told.
const mixed = "mixed"

// mixedPermits is how many permits a semaphore has.
const mixedPermits = 3

// The keys of locks of the kind, by how they are used.
const (
	ofReaders = "rw"
	ofPermits = "sem"
	ofOne     = "one"
)

// want is one lock as a worker wants it.
type want struct {
	lockset.Member
	key, mode string
}

// mixedKey is a key whose locks are used in this way, and in no other.
func (w *worker) mixedKey(use string) string {
	return fmt.Sprintf("%s-%d-%s%d", mixed, w.clock.now()/int64(w.Slice), use, w.random.IntN(w.Counters))
}

// wants draws how to hold a lock that is used in this way.
func (w *worker) wants(use, key string) want {
	m := w.rl.Mutex(key)
	switch {
	case use == ofReaders && w.chance(75):
		return want{m.Shared(), key, history.Shared}
	case use == ofPermits && w.chance(92):
		return want{w.rl.Semaphore(key, mixedPermits), key, history.Permit}
	case use == ofPermits: // these are not adopted
		return want{w.rl.Mutex(key, redlock.WithMinHold(w.between(w.TTL/50, w.TTL/10))), key, history.Alone}
	default:
		return want{m, key, history.Alone}
	}
}

// mixedCycle holds one lock, or several, in some way.
func (w *worker) mixedCycle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*w.TTL)
	defer cancel()
	uses := []string{ofReaders, ofPermits, ofOne}
	w.random.Shuffle(len(uses), func(i, j int) { uses[i], uses[j] = uses[j], uses[i] })
	first := w.mixedKey(uses[0])
	if w.Beside {
		first = w.key(plain)
	}
	wanted := []want{w.wants(uses[0], first)}
	var err error
	switch {
	case w.chance(15):
		for _, use := range uses[1 : 2+w.random.IntN(2)] {
			wanted = append(wanted, w.wants(use, w.mixedKey(use)))
		}
		err = w.holdSet(ctx, wanted)
	default:
		err = w.holdOne(ctx, wanted[0], uses[0])
	}
	time.Sleep(w.between(0, 10*time.Millisecond))
	return err
}

func (w *worker) holdOne(ctx context.Context, m want, use string) error {
	op := history.Op{Client: w.Client, Kind: history.Acquire, Key: m.key, Call: w.clock.now()}
	acquire := m.Acquire
	switch token := w.inherit(m, use); {
	case token != "":
		op.From = token
		acquire = func(ctx context.Context) (*redlock.Lock, error) { return w.rl.Mutex(m.key).Adopt(ctx, token) }
	case w.chance(20) || w.Sabotage == noCompare || w.Sabotage == noGuard:
		acquire = m.TryAcquire // who waits in line would wait until the lease is over, and not notice
	}
	lock, err := acquire(ctx)
	h, werr := w.told(op, m, lock, err)
	if h == nil || werr != nil {
		return werr
	}
	return w.use(ctx, h, lock, m.mode, use)
}

// told writes what became of an acquire.
func (w *worker) told(op history.Op, m want, lock *redlock.Lock, err error) (*hold, error) {
	op.Return = w.clock.now()
	if err != nil {
		op.Outcome, op.Err = history.Failed, reason(err)
		return nil, w.calls.Write(op)
	}
	w.grants.Add(1)
	op.Outcome, op.Token, op.Until, op.Mode = history.OK, lock.Token(), w.clock.of(lock.Until()), m.mode
	if m.mode == history.Permit {
		op.Permit, op.Permits = lock.Permit()+1, mixedPermits
	}
	h := &hold{lease: lock, key: m.key}
	h.last.Store(op.Return)
	return h, w.calls.Write(op)
}

// use works under a lock, and releases or detaches it.
func (w *worker) use(ctx context.Context, h *hold, lock *redlock.Lock, mode, use string) error {
	if err := w.work(ctx, h, false); err != nil {
		return err
	}
	if w.stopAt.CompareAndSwap(mixed, "") {
		stopSelf() // past its lease, and what it does then must have no effect
	}
	if mode == history.Alone && use == ofOne && w.chance(30) {
		if done, err := w.detach(h, lock); done || err != nil {
			return err
		}
	}
	return w.release(h)
}

// detach leaves the lock to the client that finds its token. It writes before it calls that it relies on the lock no more: one that is killed
// meanwhile, or finds that the lock is over, has lost it.
func (w *worker) detach(h *hold, lock *redlock.Lock) (done bool, err error) {
	op := history.Op{Client: w.Client, Kind: history.Release, Key: h.key, Token: h.Token(), Call: w.clock.now(), Outcome: history.Unknown}
	if err := w.calls.Write(op); err != nil {
		return false, err
	}
	until := w.clock.of(lock.Until())
	token := lock.Detach()
	if token == "" {
		return false, nil
	}
	op.Kind, op.Outcome, op.Return = history.Detach, history.OK, w.clock.now()
	if err := w.calls.Write(op); err != nil {
		return true, err
	}
	tmp := w.left(h.key) + fmt.Sprintf(".%d.%d", w.Client, w.Life)
	return true, errors.Join(os.WriteFile(tmp, fmt.Append(nil, token, " ", until), 0o600), os.Rename(tmp, w.left(h.key)))
}

// left is where the token lies of a lock that was detached, and when its lease ends.
func (w *worker) left(key string) string { return filepath.Join(w.Dir, "left-"+key) }

// inherit is the token of a lock that was detached, if there is one and its lease has not ended. One client gets it.
func (w *worker) inherit(m want, use string) string {
	if use != ofOne || m.mode != history.Alone {
		return ""
	}
	ours := w.left(m.key) + fmt.Sprintf(".to.%d.%d", w.Client, w.Life)
	if os.Rename(w.left(m.key), ours) != nil {
		return "" // there is none, or another was first
	}
	text, err := os.ReadFile(ours)
	if err != nil {
		return ""
	}
	var token string
	var until int64
	if _, err := fmt.Sscan(string(text), &token, &until); err != nil || w.clock.now() >= until {
		return ""
	}
	return token
}

// holdSet holds several locks at once, which renew themselves.
func (w *worker) holdSet(ctx context.Context, ms []want) error {
	var all []lockset.Member
	for _, m := range ms {
		all = append(all, m.Member)
	}
	call := w.clock.now()
	acquire := lockset.New(all...).Acquire
	if w.chance(20) {
		acquire = lockset.New(all...).TryAcquire
	}
	held, err := acquire(ctx)
	var holds []*hold
	for i, m := range ms {
		op := history.Op{Client: w.Client, Kind: history.Acquire, Key: m.key, Call: call}
		var lock *redlock.Lock
		if err == nil {
			lock = held[i]
		}
		h, werr := w.told(op, m, lock, err)
		if werr != nil {
			return werr
		}
		if h != nil {
			w.holds.Store(h.Token(), h)
			defer w.holds.Delete(h.Token())
			holds = append(holds, h)
		}
	}
	if err != nil {
		return nil
	}
	pause := w.between(time.Millisecond, 8*time.Millisecond)
	if w.chance(2) {
		pause = w.TTL
	}
	time.Sleep(pause)
	for _, h := range holds {
		if err := w.release(h); err != nil {
			return err
		}
	}
	return nil
}
