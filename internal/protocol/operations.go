package protocol

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"strings"
	"time"
)

// This file is the table of what may be asked of a node: operations, with what their answers mean,
// and scripts, with the words that each of them is given. A new one is a row here, its Lua in
// scripts/, and its twin in package fakenode.

// Op is what a request asks of a node.
type Op uint8

const (
	OpAcquire Op = iota + 1
	OpAcquireFenced
	OpAdopt // a lock that is held under another token, fenced or not
	OpAcquireShared
	OpExtend
	OpRepair // put back a key that a node lost, after a successful extend
	OpRaise  // a fencing counter
	OpRelease
	OpForceRelease
	OpInspect
	OpJoin // the wait queue of a lock
	opMark // the memory mark, which belongs to no lock
	opDoor // keeps newcomers from sharing a lock
	opTry  // a lock's commands, and what goes along with that; it belongs to no lock
)

// trait is something that is true of several operations.
type trait uint8

const (
	acquires trait = 1 << iota // it may make us the holder
	restores                   // it may give us the key back
	okay                       // "OK" says that it was done
	numbers                    // so does a number above 0: of a permit and one, or a fencing token
	finds                      // a text is the value that was there in place of ours, 0 that nothing was
	compares                   // it does nothing but to a value that is there, so another type is an answer
	tells                      // it is answered with a list of facts, and with nothing that could be a vote
)

// operations says what errors call an operation, and how its answers are read.
var operations = [...]struct {
	name   string
	traits trait
}{
	OpAcquire:       {"acquire", acquires | okay},
	OpAcquireFenced: {"acquire", acquires | numbers},
	OpAdopt:         {"adopt", acquires | numbers | finds | compares},
	OpAcquireShared: {"acquire", acquires | numbers},
	OpExtend:        {"extend", finds | compares},
	OpRepair:        {"repair", restores | okay | numbers},
	OpRaise:         {"raise", finds},
	OpRelease:       {"release", finds | compares},
	OpForceRelease:  {"force release", finds | compares},
	OpInspect:       {"inspect", tells},
	OpJoin:          {"join", tells},
	opMark:          {"mark", tells},
	opDoor:          {"door", okay | finds},
	opTry:           {"try", numbers},
}

func (o Op) is(any trait) bool { return operations[o].traits&any != 0 }

// String is the operation as errors name it.
func (o Op) String() string { return operations[o].name }

// Sets reports whether the request may create the lock's key or give it to us.
func (o Op) Sets() bool { return o.is(acquires | restores) }

// Looks reports whether the node's memory mark is read behind the request.
func (o Op) Looks() bool { return o.Sets() || o == opTry }

// Acquires reports whether the request may make us the holder.
func (o Op) Acquires() bool { return o.is(acquires) }

// Script is a Lua script, run by its digest once a server knows it, and a row of the table.
type Script struct {
	Source, digest string
	op             Op     // of a request that says no other
	keys           []word // declared to the server, which checks a user's rights and a cluster's slot by them
	args           []word
}

var (
	ReleaseScript      = script("release", OpRelease, words{lockKey}, words{lockValue})
	BundleScript       = script("release_many", OpRelease, words{lockKeys}, words{lockValues, lineKeys})
	ExtendScript       = script("extend", OpExtend, words{lockKey}, words{lockValue, px, exactly})
	InspectScript      = script("inspect", OpInspect, words{lockKey}, words{queueKey, queueMost, unusualHolders})
	ForceScript        = script("force", OpForceRelease, words{lockKey}, words{lockValue, queueKey, unusualHolders})
	QueueReleaseScript = script("line_release", OpRelease, words{lockKey}, words{lockValue, queueKey, queueEntry, queueAs, unusualQueueHolders})

	// The key of a door is the door's.
	DoorScript = script("door", opDoor, words{lockKey}, words{lockValue, px})

	JoinScript = script("line_join", OpJoin, words{lockKey, queueKey},
		words{queueEntry, queueEnded, queueArrival, queueWaited, queueLife, queueBack, unusualQueueHolders})
	ClaimScript = script("line_claim", OpAcquire, words{lockKey, queueKey}, words{lockValue, px, queueEntry})

	SharedClaimScript   = script("shared_claim", OpAcquireShared, words{lockKey, holdersKey, doorKey, queueKey}, words{lockValue, px, permitLimit, queueEntry})
	SharedExtendScript  = script("shared_extend", OpExtend, words{lockKey, holdersKey}, words{lockValue, px, permitNumber})
	SharedReleaseScript = script("shared_release", OpRelease, words{lockKey, holdersKey}, words{lockValue, queueKey, queueEntry, queueAs})

	AdoptScript       = script("adopt", OpAdopt, words{lockKey, fenceKey}, words{lockValue, px, formerToken, fenceToken, fenceKeeps})
	FenceScript       = script("fence", OpAcquireFenced, words{lockKey, fenceKey, queueKey}, words{lockValue, px, fenceToken, fenceKeeps, queueEntry})
	RaiseScript       = script("fence_raise", OpRaise, words{lockKey, fenceKey}, words{lockValue, fenceToken, fenceKeeps})
	FenceRepairScript = script("fence_repair", OpRepair, words{lockKey, fenceKey}, words{lockValue, px, fenceToken, fenceKeeps})

	MarkScript = script("mark", opMark, words{lockKey}, words{markWords})

	// The key of a try is behind the same prefix as those of locks, and is never there.
	TryScript = script("try", opTry, words{lockKey}, nil)
)

// word is what stands at a place of a command, as a request has it. A word of a part that a request
// does not have is left out. So is a queue's key of those that are declared, if it is empty.
type word uint8

type words []word

const (
	lockKey word = iota
	lockValue
	px
	formerToken
	exactly // as a release: also where that is less
	markWords

	lockKeys // of each lock of a bundle
	lockValues
	lineKeys

	holdersKey
	doorKey
	permitLimit
	permitNumber
	unusualHolders // a name that a script does not know by itself

	fenceKey
	fenceToken
	fenceKeeps // for how long the counter lives

	queueKey
	queueEntry
	queueEnded
	queueArrival
	queueWaited
	queueMost
	queueAs
	queueLife
	queueBack
	unusualQueueHolders
)

const (
	// QueueLife is how long at least a wait queue outlives the last sign of its waiters.
	QueueLife = 30 * time.Second
	// fenceLife is how long a counter outlives its last use. After that, servers' clocks
	// keep the order, since tokens are microseconds of theirs or more.
	fenceLife = 7 * 24 * time.Hour
)

// arguments writes what stands behind a script. Together with the table it is the only place
// that knows where a script expects what.
func (r *Request) arguments(w Words) {
	n := 0
	for _, k := range r.Script.keys {
		n += r.declares(k)
	}
	w.Num(int64(n))
	for _, k := range r.Script.keys {
		if r.declares(k) > 0 {
			r.write(w, k)
		}
	}
	for _, a := range r.Script.args {
		r.write(w, a)
	}
}

// declares is how many keys of a command a word stands for.
func (r *Request) declares(key word) int {
	switch {
	case key == lockKeys:
		return len(r.Bundle().Of)
	case key == fenceKey && r.fence() == nil, key == queueKey && (r.Queue == nil || r.Queue.Key == ""):
		return 0
	default:
		return 1
	}
}

// write writes what a word stands for.
func (r *Request) write(w Words, a word) {
	switch a {
	case lockKey:
		w.Str(r.Key)
	case lockValue:
		w.Str(r.Value)
	case px:
		w.Num(r.Px)
	case formerToken:
		w.Str(r.from())
	case exactly:
		if r.Op == OpRelease {
			w.Str("exactly")
		}
	case markWords:
		for _, arg := range r.mark() {
			w.Str(arg)
		}
	case lockKeys, lockValues, lineKeys:
		r.Bundle().write(w, a)
	case holdersKey, doorKey, permitLimit, permitNumber, unusualHolders:
		r.share().write(w, a)
	case fenceKey, fenceToken, fenceKeeps:
		if f := r.fence(); f != nil {
			f.write(w, a)
		}
	default:
		if r.Queue != nil {
			r.Queue.write(w, a)
		}
	}
}

func (b *Bundle) write(w Words, a word) {
	switch a {
	case lockKeys:
		for _, r := range b.Of {
			w.Str(r.Key)
		}
	case lockValues:
		for _, r := range b.Of {
			w.Str(r.Value)
		}
	case lineKeys:
		for _, r := range b.Of[:b.lined] {
			r.writeLine(w)
		}
	}
}

func (s *ShareArgs) write(w Words, a word) {
	switch a {
	case holdersKey:
		w.Str(s.Holders)
	case doorKey:
		w.Str(s.Door)
	case permitLimit:
		w.Num(s.Limit)
	case permitNumber:
		w.Num(s.Number)
	case unusualHolders:
		unusual(w, s.Holders)
	}
}

func (f *FenceArgs) write(w Words, a word) {
	switch a {
	case fenceKey:
		w.Str(f.Key)
	case fenceToken:
		w.Num(int64(f.Token))
	case fenceKeeps:
		w.Num(fenceLife.Milliseconds())
	}
}

func (q *QueueArgs) write(w Words, a word) {
	switch a {
	case queueKey:
		w.Str(q.Key)
	case queueEntry:
		w.Str(q.Entry)
	case queueEnded:
		w.Str(q.Ended)
	case queueArrival:
		w.Num(q.Arrival)
	case queueWaited:
		w.Num(q.Waited)
	case queueMost:
		w.Num(q.most)
	case queueAs:
		w.Str(q.As.digit())
	case queueLife:
		w.Num(max(QueueLife, q.Back).Milliseconds())
	case queueBack:
		w.Num(q.Back.Milliseconds())
	case unusualQueueHolders:
		unusual(w, q.Holders)
	}
}

// unusual is a name that a script does not know by itself.
func unusual(w Words, name string) {
	if name != "" {
		w.Str(name)
	}
}

// Words are those of a command that runs a script on one key.
func (s *Script) Words(key string, whole bool) []string {
	if whole {
		return []string{"EVAL", s.Source, "1", key}
	}
	return []string{"EVALSHA", s.digest, "1", key}
}

//go:embed scripts/*.lua
var ScriptFiles embed.FS

func script(name string, o Op, keys, args words) *Script {
	src := MustRead(name)
	for _, part := range []string{"value", "shared", "line", "fence_counter"} {
		src = strings.Replace(src, "-- include "+part+".lua\n", MustRead(part), 1)
	}
	sum := sha1.Sum([]byte(src))
	return &Script{Source: src, digest: hex.EncodeToString(sum[:]), op: o, keys: keys, args: args}
}

// MustRead is a file of scripts, such as "release", or "line", which others include.
func MustRead(name string) string {
	src, err := ScriptFiles.ReadFile("scripts/" + name + ".lua")
	if err != nil {
		panic("bug: " + err.Error())
	}
	return string(src)
}
