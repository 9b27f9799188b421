// Package lanetest is the end of a lane for tests: a wire whose answers are scripted.
package lanetest

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing/synctest"
	"time"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
)

// ScriptedWire is a wire to a node whose replies a test scripts, and which notes what
// goes over it.
type ScriptedWire struct {
	start time.Time

	Mu      sync.Mutex
	Batches []exchangeLog
	// Reply answers a request; what it does not know is answered well.
	Reply func(name string, whole bool) protocol.Answer
	Takes time.Duration // an exchange
	Each  time.Duration // and every request in it
	Gate  chan struct{} // if set, each exchange waits for it
	out   int           // exchanges under way
	Most  int           // of them at a time
}

// exchangeLog is one batch as a wire saw it.
type exchangeLog struct {
	At, ended time.Duration // since the wire was made; ended is 0 while the batch is out
	Bound     time.Duration
	names     []string
	keys      []string
	ops       []protocol.Op
}

func NewScriptedWire() *ScriptedWire { return &ScriptedWire{start: time.Now()} }

func (w *ScriptedWire) Exchange(batch []*lane.Call, _, bound time.Duration) {
	w.Mu.Lock()
	w.out++
	w.Most = max(w.Most, w.out)
	i := len(w.Batches)
	w.Batches = append(w.Batches, exchangeLog{At: time.Since(w.start), Bound: bound})
	log := &w.Batches[i]
	for _, c := range batch {
		log.names = append(log.names, nameOf(c.Req))
		log.keys = append(log.keys, c.Req.Key)
		log.ops = append(log.ops, c.Req.Op)
	}
	gate, takes := w.Gate, w.Takes+time.Duration(len(batch))*w.Each
	w.Mu.Unlock()
	if gate != nil {
		<-gate
	}
	time.Sleep(takes)
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.out--
	w.Batches[i].ended = time.Since(w.start)
	for _, c := range batch {
		c.Answer = w.answer(c.Req)
	}
}

// Answers changes the script while requests may be on their way.
func (w *ScriptedWire) Answers(reply func(name string, whole bool) protocol.Answer) {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.Reply = reply
}

func (w *ScriptedWire) answer(req *protocol.Request) protocol.Answer {
	if w.Reply != nil {
		if a := w.Reply(nameOf(req), req.Whole); a != (protocol.Answer{}) {
			return a
		}
	}
	if req.Op.Sets() {
		return Ok
	}
	return One
}

// nameOf tells requests by their value, since a resend is another one.
func nameOf(req *protocol.Request) string { return fmt.Sprint(req.Value, req.Op) }

// Sent are the names of all requests, batch by batch.
func (w *ScriptedWire) Sent() (all [][]string) {
	synctest.Wait()
	w.Mu.Lock()
	defer w.Mu.Unlock()
	for _, l := range w.Batches {
		all = append(all, l.names)
	}
	return all
}

// Twice are the keys that were in two batches at the same time.
func (w *ScriptedWire) Twice() (keys []string) {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	for i, later := range w.Batches {
		for _, earlier := range w.Batches[:i] {
			if earlier.ended != 0 && earlier.ended <= later.At {
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

// Order is in which order there were requests for each key.
func (w *ScriptedWire) Order() map[string][]protocol.Op {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	ops := make(map[string][]protocol.Op)
	for _, l := range w.Batches {
		for i, k := range l.keys {
			ops[k] = append(ops[k], l.ops[i])
		}
	}
	return ops
}

// ServerError is an answer of a server that is an error.
type ServerError string

func (e ServerError) Error() string { return string(e) }
func (ServerError) RedisError()     {}

var (
	errEOF     = errors.New("EOF")
	ErrRefused = &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	NoScript   = protocol.Answer{Said: ServerError("NOSCRIPT No matching script."), Sent: true}
	Ok         = protocol.Answer{Said: "OK", Sent: true}
	One        = protocol.Answer{Said: int64(1), Sent: true}
	Zero       = protocol.Answer{Said: int64(0), Sent: true}
	Lost       = protocol.Answer{Said: errEOF, Sent: true}
	Refused    = protocol.Answer{Said: ErrRefused}
)

// Rest lets time pass.
func Rest(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
