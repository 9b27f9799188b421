package redlock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// pinIdle is for how long a connection of a user's pool is kept without work. One that
// is idle dies unnoticed, and the user wants it back.
const pinIdle = time.Second

// newInfo is the command for it, which is not sent twice either: it shares a pipeline
// with others.
func newInfo(ctx context.Context) *once {
	o := new(once)
	o.reset(ctx, true, []any{"INFO", "server"})
	return o
}

// sighting reads the answer; ok is false where there was none.
func (o *once) sighting() (s sighting, ok bool) {
	if err := o.Err(); err != nil {
		return sighting{err: err}, isServerError(err)
	}
	info := parseInfo(o.status.Val())
	uptime, told := info.uptime()
	if info.runID() == "" || !told {
		return sighting{err: errors.New("INFO server tells no run_id or no uptime_in_seconds")}, o.status.Val() != ""
	}
	return sighting{runID: info.runID(), uptime: uptime}, true
}

// onConnect has a client of our own tell of each new connection before it is used.
func onConnect(saw func(sighting)) func(context.Context, *redis.Conn) error {
	return func(ctx context.Context, cn *redis.Conn) error {
		info := newInfo(ctx)
		err := cn.Process(ctx, info)
		s, ok := info.sighting()
		if ok {
			saw(s)
			return nil
		}
		return err
	}
}

// pins are connections that are kept out of a user's pool, so that it is known when one
// is new. Each is asked who answers at the head of the first pipeline on it.
type pins struct {
	clock clock
	saw   func(sighting)
	size  int // of the pool
	most  int // of the pool's connections that we keep

	mu    sync.Mutex // guards what follows
	kept  []*pin
	taken int
	done  bool
	alarm alarm // for what is idle
}

type pin struct {
	conn  *redis.Conn
	bound time.Duration // its read timeout
	known bool          // was asked
	idle  int64         // since when
}

// watch makes the wire tell of new connections.
func (w *redisWire) watch(c clock, told func(sighting) *markWrite) {
	saw := func(s sighting) { told(s) } // these connections do not read marks
	if w.ours {
		return // see onConnect
	}
	single, ok := w.client.(*redis.Client)
	if !ok {
		saw(sighting{err: errNoSinglePool})
		return
	}
	// The pool's last connection is left to the user, whose commands would wait for it.
	size := single.Options().PoolSize
	if most := single.Options().MaxActiveConns; most > 0 {
		size = min(size, most)
	}
	w.pins = &pins{clock: c, saw: saw, size: size, most: min(mostOut, size-1)}
	w.pins.alarm = alarm{clock: c, f: w.pins.tick}
}

// take returns a connection that is pinned, nil where none is to be had without waiting.
func (p *pins) take(client *redis.Client, bound time.Duration) *pin {
	p.mu.Lock()
	defer p.mu.Unlock()
	// The one used last is the likeliest to be alive.
	for i := len(p.kept) - 1; i >= 0; i-- {
		if k := p.kept[i]; k.bound == bound {
			p.kept = slices.Delete(p.kept, i, i+1)
			p.taken++
			return k
		}
	}
	for len(p.kept) > 0 && len(p.kept)+p.taken >= p.most { // all of another patience
		_ = p.kept[0].conn.Close()
		p.kept = slices.Delete(p.kept, 0, 1)
	}
	if p.done || p.taken+len(p.kept) >= p.most {
		return nil
	}
	if s := client.PoolStats(); s.IdleConns == 0 && int(s.TotalConns) >= p.size {
		return nil
	}
	p.taken++
	return &pin{conn: client.Conn(), bound: bound}
}

// put keeps a connection for the next batch, or gives it back to the pool.
func (p *pins) put(k *pin, broken bool) {
	now := p.clock.now().mono
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if broken || p.done {
		_ = k.conn.Close()
		return
	}
	k.idle = now
	p.kept = append(p.kept, k)
	p.alarm.set(now+int64(pinIdle), now)
}

func (p *pins) tick() {
	now := p.clock.now().mono
	p.mu.Lock()
	defer p.mu.Unlock()
	p.alarm.rang()
	p.kept = slices.DeleteFunc(p.kept, func(k *pin) bool {
		over := now-k.idle >= int64(pinIdle)
		if over {
			_ = k.conn.Close()
		}
		return over
	})
	if len(p.kept) > 0 {
		// kept is in the order of use.
		p.alarm.set(p.kept[0].idle+int64(pinIdle), now)
	}
}

// close gives all back.
func (p *pins) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = true
	for _, k := range p.kept {
		_ = k.conn.Close()
	}
	p.kept = nil
	p.alarm.stop()
}

// exchange sends the commands over a pinned connection, or, with the question at their
// head each time, over whichever the client has for pipelines.
func (p *pins) exchange(ctx context.Context, client *redis.Client, bound time.Duration, cmds []redis.Cmder) error {
	k := p.take(client, bound)
	var pipe redis.Pipeliner
	if k == nil {
		pipe = client.Pipeline()
	} else {
		pipe = k.conn.Pipeline()
	}
	var info *once
	if k == nil || !k.known {
		info = newInfo(ctx)
		_ = pipe.Process(ctx, info)
	}
	_ = pipe.BatchProcess(ctx, cmds...) // only queues them
	_, failure := pipe.Exec(ctx)
	known := k != nil && k.known
	if info != nil {
		s, ok := info.sighting()
		if ok {
			p.saw(s)
		}
		known = ok
	}
	if k != nil {
		k.known = known
		p.put(k, !known || broke(cmds))
	}
	return failure
}

// broke reports whether a connection may be of no more use after these commands. After
// some errors of a server (READONLY, for one) go-redis closes it, and from then on repeats
// that error in the server's name; an unknown script is none of them.
func broke(cmds []redis.Cmder) bool {
	return slices.ContainsFunc(cmds, func(c redis.Cmder) bool {
		err := c.Err()
		return err != nil && !errors.Is(err, redis.Nil) && !strings.HasPrefix(err.Error(), "NOSCRIPT")
	})
}
