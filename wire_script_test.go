package redlock

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing/synctest"
	"time"
)

// scriptedWire is a wire to a node whose replies a test scripts, and which notes what
// goes over it.
type scriptedWire struct {
	start time.Time

	mu      sync.Mutex
	batches []exchangeLog
	// reply answers a request; what it does not know is answered well.
	reply func(name string, whole bool) ballot
	takes time.Duration // an exchange
	each  time.Duration // and every request in it
	gate  chan struct{} // if set, each exchange waits for it
	out   int           // exchanges under way
	most  int           // of them at a time
}

// exchangeLog is one batch as a wire saw it.
type exchangeLog struct {
	at, ended time.Duration // since the wire was made; ended is 0 while the batch is out
	bound     time.Duration
	names     []string
	keys      []string
	ops       []op
}

func newScriptedWire() *scriptedWire { return &scriptedWire{start: time.Now()} }

func (w *scriptedWire) exchange(batch []*call, _, bound time.Duration, left func()) (settled bool) {
	left()
	w.mu.Lock()
	w.out++
	w.most = max(w.most, w.out)
	i := len(w.batches)
	w.batches = append(w.batches, exchangeLog{at: time.Since(w.start), bound: bound})
	log := &w.batches[i]
	for _, c := range batch {
		log.names = append(log.names, nameOf(c.req))
		log.keys = append(log.keys, c.req.key)
		log.ops = append(log.ops, c.req.op)
	}
	gate, takes := w.gate, w.takes+time.Duration(len(batch))*w.each
	w.mu.Unlock()
	if gate != nil {
		<-gate
	}
	time.Sleep(takes)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.out--
	w.batches[i].ended = time.Since(w.start)
	for _, c := range batch {
		c.ballot = w.answer(c.req)
	}
	return !slices.ContainsFunc(batch, func(c *call) bool { return !c.answered() && c.sent })
}

// answers changes the script while requests may be on their way.
func (w *scriptedWire) answers(reply func(name string, whole bool) ballot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reply = reply
}

func (w *scriptedWire) answer(req *request) ballot {
	if w.reply != nil {
		if a := w.reply(nameOf(req), req.whole); a != (ballot{}) {
			return a
		}
	}
	if req.op.sets() {
		return ok
	}
	return one
}

// nameOf tells requests by their value, since a resend is another one.
func nameOf(req *request) string { return fmt.Sprint(req.value, req.op) }

// sent are the names of all requests, batch by batch.
func (w *scriptedWire) sent() (all [][]string) {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.batches {
		all = append(all, l.names)
	}
	return all
}

// twice are the keys that were in two batches at the same time.
func (w *scriptedWire) twice() (keys []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, later := range w.batches {
		for _, earlier := range w.batches[:i] {
			if earlier.ended != 0 && earlier.ended <= later.at {
				continue
			}
			for _, k := range later.keys {
				if slices.Contains(earlier.keys, k) {
					keys = append(keys, k)
				}
			}
		}
	}
	return keys
}

// order is in which order there were requests for each key.
func (w *scriptedWire) order() map[string][]op {
	w.mu.Lock()
	defer w.mu.Unlock()
	ops := make(map[string][]op)
	for _, l := range w.batches {
		for i, k := range l.keys {
			ops[k] = append(ops[k], l.ops[i])
		}
	}
	return ops
}

// serverError is an answer of a server that is an error.
type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}

var (
	errEOF     = errors.New("EOF")
	errRefused = &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	noScript   = ballot{err: serverError("NOSCRIPT No matching script."), sent: true}
	ok         = ballot{val: "OK", sent: true}
	one        = ballot{val: int64(1), sent: true}
	zero       = ballot{val: int64(0), sent: true}
	lost       = ballot{err: errEOF, sent: true}
	refused    = ballot{err: errRefused}
)

// rest lets time pass.
func rest(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
