package protocol

import (
	"fmt"
	"strings"
	"time"
)

// Inspection is one node's answer to an inspect request.
type Inspection struct {
	Kind    string // Redis' name of the type; "none" if there is no key; TooLong
	Value   string
	TTL     time.Duration // -1ms without end
	Waiting int
	Waiters []Waiting
	Shared  bool // several may hold it
	Holders []Sharer
}

// Waiting is an entry of a wait queue.
type Waiting struct {
	Process string // that it belongs to
	Owner   string
	Mode    string
	Waited  time.Duration
}

// Sharer is a holder that shares a lock, as a node lists it.
type Sharer struct {
	Value  string
	TTL    time.Duration
	Number int64 // of its permit, from 1; 0: none
}

// The modes are the ways to hold a lock.
const (
	ModeExclusive = "exclusive"
	ModeShared    = "shared"
	ModePermit    = "permit"
)

// NoLock is why what the key holds is no lock; nil if it is one, or free.
func (n *Inspection) NoLock() error {
	if n.Kind == "string" || n.Kind == "none" {
		return nil
	}
	return fmt.Errorf("the key holds a %s, which is no lock", n.Kind)
}

// ReadInspection reads an answer to an inspect request; known: it is one.
func ReadInspection(val any) (n Inspection, known bool) {
	fields, _ := val.([]any)
	if len(fields) < 5 {
		return n, false
	}
	n.Kind, known = fields[0].(string)
	if n.Value, _ = fields[1].(string); len(n.Value) > LongestValue {
		n.Kind, n.Value = TooLong, ""
	}
	ms, _ := fields[2].(int64)
	n.TTL = time.Duration(ms) * time.Millisecond
	waiting, _ := fields[3].(int64)
	n.Waiting = int(waiting)
	queue, _ := fields[4].([]any)
	n.Waiters = readWaiters(queue)
	if n.Shared = len(fields) > 5; n.Shared {
		list, _ := fields[5].([]any)
		n.Holders = readSharers(list)
	}
	return n, known
}

// readWaiters reads entries of a wait queue, each with the microseconds it has waited.
func readWaiters(queue []any) (all []Waiting) {
	for ; len(queue) >= 2; queue = queue[2:] {
		entry, _ := queue[0].(string)
		waited, _ := queue[1].(int64)
		process, rest, _ := strings.Cut(entry, " ")
		terms, value, _ := strings.Cut(rest, " ")
		_, owner, _ := strings.Cut(value, "@")
		all = append(all, Waiting{process, owner, modeOf(terms), time.Duration(waited) * time.Microsecond})
	}
	return all
}

// modeOf is the mode of a waiter by the second word of its entry, see scripts/line.lua.
func modeOf(terms string) string {
	switch _, limit, shares := strings.Cut(terms, "s"); {
	case !shares:
		return ModeExclusive
	case limit == "0":
		return ModeShared
	default:
		return ModePermit
	}
}

// readSharers reads a lock's sharers: value, ms left and number of each.
func readSharers(list []any) (all []Sharer) {
	for ; len(list) >= 3; list = list[3:] {
		value, _ := list[0].(string)
		left, _ := list[1].(int64)
		number, _ := list[2].(int64)
		all = append(all, Sharer{value, time.Duration(left) * time.Millisecond, number})
	}
	return all
}
