package fakenode

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
)

// memory of a simulated server: the part of Redis that the library uses, with the scripts
// in Go. That it answers as a server does is what internal/testing/contract shows, case by case.
type Store struct {
	Now     func() int64 // nanoseconds of the server's wall clock since 1970
	Keys    map[string]*Key
	Scripts map[*protocol.Script]bool // that it was sent whole
	Publish func(channel, message string)
	Mute    bool // nobody may publish
	NoMGet  bool // nor use MGET
	Watch   Watch

	words words // of the request that Do is at
}

// words are a command as a server reads it.
type words []string

func (w *words) Str(s string) { *w = append(*w, s) }

func (w *words) Join(a, b, c string) { *w = append(*w, a+b+c) }

func (w *words) Num(n int64) { *w = append(*w, strconv.FormatInt(n, 10)) }

// Key is what lies under a key: a string, a sorted set, or something else.
type Key struct {
	Str    string
	Zset   map[string]float64
	Other  string // the type of what is no string and no sorted set
	expire int64  // milliseconds since 1970; 0: never
}

// Watch is told what becomes of strings, which locks are. The op is the request's.
type Watch interface {
	Put(key, value string, expire int64, op *Op)
	Prolonged(key, value string, expire int64, op *Op)
	Removed(key, value string, op *Op)
	// Listed and struck: of those who share a lock. till is in milliseconds since 1970.
	Listed(key, value string, number, till int64, op *Op)
	Struck(key, value string, op *Op)
}

// Op is who does something.
type Op struct {
	Req   *protocol.Request
	Value string // of the lock that the request is about
	Ended string // and of the attempt before
}

type nobody struct{}

func (nobody) Put(string, string, int64, *Op)       {}
func (nobody) Prolonged(string, string, int64, *Op) {}
func (nobody) Removed(string, string, *Op)          {}

func (nobody) Listed(string, string, int64, int64, *Op) {}
func (nobody) Struck(string, string, *Op)               {}

func New(now func() int64) *Store {
	return &Store{
		Now: now, Keys: make(map[string]*Key), Scripts: make(map[*protocol.Script]bool),
		Publish: func(string, string) {}, Watch: nobody{},
	}
}

// Error is an answer that is an error.
type Error string

func (e Error) Error() string { return string(e) }
func (Error) RedisError()     {}

func wrongTypeOf(key string) Error { return wrongType + Error(": "+key) }

const wrongType = Error("WRONGTYPE Operation against a key holding the wrong kind of value")

func (s *Store) Millis() int64 { return s.Now() / int64(time.Millisecond) }
func (s *Store) Micros() int64 { return s.Now() / int64(time.Microsecond) }

// Get is what is under a key now.
func (s *Store) Get(key string) *Key {
	k := s.Keys[key]
	if k != nil && k.expire > 0 && s.Millis() > k.expire {
		delete(s.Keys, key)
		return nil
	}
	return k
}

func (s *Store) Set(key, value string, px int64, op *Op) {
	at := int64(0)
	if px > 0 {
		at = s.Millis() + px
	}
	if k := s.Get(key); k != nil {
		s.Watch.Removed(key, k.Str, op)
	}
	s.Keys[key] = &Key{Str: value, expire: at}
	s.Watch.Put(key, value, at, op)
}

func (s *Store) Del(key string, op *Op) {
	if k := s.Get(key); k != nil {
		delete(s.Keys, key)
		s.Watch.Removed(key, k.Str, op)
	}
}

func (s *Store) ExpireIn(key string, px int64, op *Op) {
	k := s.Get(key)
	if k == nil {
		return
	}
	if px <= 0 {
		s.Del(key, op)
		return
	}
	k.expire = s.Millis() + px
	s.Watch.Prolonged(key, k.Str, k.expire, op)
}

func (s *Store) Pttl(key string) int64 {
	switch k := s.Get(key); {
	case k == nil:
		return -2
	case k.expire == 0:
		return -1
	default:
		return k.expire - s.Millis()
	}
}

func (s *Store) Typ(key string) string {
	switch k := s.Get(key); {
	case k == nil:
		return "none"
	case k.Zset != nil:
		return "zset"
	case k.Other != "":
		return k.Other
	default:
		return "string"
	}
}

// Text is valueOf of scripts/value.lua, and GET of what is no longer.
func (s *Store) Text(key string) (value string, ok bool, err error) {
	switch k := s.Get(key); {
	case k == nil:
		return "", false, nil
	case k.Zset != nil || k.Other != "":
		return "", false, wrongType
	default:
		return k.Str[:min(len(k.Str), protocol.LongestValue+1)], true, nil
	}
}

// The sorted set of a line. Missing ones read as empty.

func (s *Store) zset(key string) (map[string]float64, error) {
	switch k := s.Get(key); {
	case k == nil:
		return nil, nil
	case k.Zset == nil:
		return nil, wrongTypeOf(key)
	default:
		return k.Zset, nil
	}
}

func (s *Store) Zadd(key string, score float64, member string) {
	k := s.Get(key)
	switch {
	case k == nil:
		k = &Key{Zset: make(map[string]float64)}
		s.Keys[key] = k
	case k.Zset == nil:
		panic(abort{wrongType})
	}
	k.Zset[member] = score
}

func (s *Store) zrem(key string, members ...string) (n int) {
	k := s.Get(key)
	switch {
	case k == nil:
		return 0
	case k.Zset == nil:
		panic(abort{wrongType})
	}
	for _, m := range members {
		if _, ok := k.Zset[m]; ok {
			delete(k.Zset, m)
			n++
		}
	}
	if len(k.Zset) == 0 {
		delete(s.Keys, key)
	}
	return n
}

// Waiting is the members with a score of at least 0, first come first.
func (s *Store) Waiting(key string) (members []string) {
	k := s.Get(key)
	if k == nil {
		return nil
	}
	for m, score := range k.Zset {
		if score >= 0 {
			members = append(members, m)
		}
	}
	slices.SortFunc(members, func(a, b string) int {
		if d := k.Zset[a] - k.Zset[b]; d != 0 {
			return int(math.Copysign(1, d))
		}
		return strings.Compare(a, b)
	})
	return members
}

// abort ends a script: a command of it was answered with an error.
type abort struct{ Error }

// Do answers a request as the server would: a value as go-redis reads it, or an error.
func (s *Store) Do(req *protocol.Request) (val any, err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case abort:
			val, err = nil, r.Error
		default:
			panic(r)
		}
	}()
	s.words = s.words[:0]
	req.Write(&s.words, protocol.NoNative)
	args := s.words
	op := &Op{Req: req, Value: req.Value}
	if req.Native != protocol.NoNative {
		return s.deleteIfEqual(args[1], req.Value, op)
	}
	if req.Script == nil {
		return s.command(args, op)
	}
	if !req.Whole && !s.Scripts[req.Script] {
		return nil, Error("NOSCRIPT No matching script. Please use EVAL.")
	}
	s.Scripts[req.Script] = true
	n, _ := strconv.Atoi(args[2])
	return twins[req.Script](s, args[3:3+n], args[3+n:], op)
}

// twins are the scripts in Go.
var twins = map[*protocol.Script]func(s *Store, keys, argv []string, op *Op) (any, error){
	protocol.ReleaseScript:       (*Store).release,
	protocol.BundleScript:        (*Store).releaseMany,
	protocol.ExtendScript:        (*Store).extend,
	protocol.InspectScript:       (*Store).inspect,
	protocol.ForceScript:         (*Store).force,
	protocol.QueueReleaseScript:  (*Store).lineRelease,
	protocol.DoorScript:          (*Store).shut,
	protocol.JoinScript:          (*Store).join,
	protocol.ClaimScript:         (*Store).claim,
	protocol.SharedClaimScript:   (*Store).sharedClaim,
	protocol.SharedExtendScript:  (*Store).sharedExtend,
	protocol.SharedReleaseScript: (*Store).sharedRelease,
	protocol.AdoptScript:         (*Store).adopt,
	protocol.FenceScript:         (*Store).fence,
	protocol.RaiseScript:         (*Store).raise,
	protocol.FenceRepairScript:   (*Store).fenceRepair,
	protocol.MarkScript:          (*Store).mark,
	protocol.TryScript:           (*Store).try,
}

func (s *Store) try(keys, _ []string, _ *Op) (any, error) {
	switch _, found, err := s.Text(keys[0]); {
	case err != nil:
		return []any{"GET", err.Error()}, nil
	case found:
		return []any{"", ""}, nil
	}
	return int64(1), nil
}

func Argument(a any) string {
	switch a := a.(type) {
	case string:
		return a
	case int64:
		return strconv.FormatInt(a, 10)
	case int:
		return strconv.Itoa(a)
	case uint64:
		return strconv.FormatUint(a, 10)
	default:
		return fmt.Sprint(a)
	}
}

func Number(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}

// entryParts is parts of line.lua.
func entryParts(member string) (process string, grace int64, value string) {
	process, grace, value, _ = EntryMode(member)
	return process, grace, value
}

// EntryMode is entryParts with the limit of one who wants to share the lock; -1: it does not.
func EntryMode(member string) (process string, grace int64, value string, limit int64) {
	f := strings.SplitN(member, " ", 3)
	if len(f) < 3 {
		return "", 0, "", -1
	}
	time, many, shares := strings.Cut(f[1], "s")
	if time == "" || strings.Trim(time+many, "0123456789") != "" || f[0] == "" {
		return "", 0, "", -1
	}
	if limit = -1; shares {
		limit = Number(many)
	}
	return f[0], Number(time), f[2], limit
}

func ValueIn(entry string) string {
	_, _, v := entryParts(entry)
	return v
}

// command is SET with its options.
func (s *Store) command(args []string, op *Op) (any, error) {
	nx, px := false, int64(0)
	for i := 3; i < len(args); i++ {
		switch args[i] {
		case "NX":
			nx = true
		case "PX":
			i++
			px = Number(args[i])
		}
	}
	if nx && s.Get(args[1]) != nil {
		return nil, nil
	}
	s.Set(args[1], args[2], px, op)
	return "OK", nil
}

// The scripts, in the order of their files.

func orZero(v string, ok bool) any {
	if !ok {
		return int64(0)
	}
	return v
}

func (s *Store) extend(keys, argv []string, op *Op) (any, error) {
	key := keys[0]
	v, ok, err := s.Text(key)
	if err != nil {
		return nil, err
	}
	if ok && v == argv[0] {
		if len(argv) > 2 || s.Pttl(key) < Number(argv[1]) {
			s.ExpireIn(key, Number(argv[1]), op)
		}
		return int64(1), nil
	}
	return orZero(v, ok), nil
}

const mostFence = 1 << 52

func (s *Store) counter(key string) (int64, error) {
	v, ok, err := s.Text(key)
	if err != nil {
		return 0, wrongTypeOf(key)
	}
	if !ok {
		return 0, nil
	}
	n, perr := strconv.ParseUint(v, 10, 64)
	if perr != nil || len(v) > 16 || n > mostFence || v[0] == '+' {
		return 0, Error("BADFENCE the fencing counter holds no integer from 0 to 2^52: " + Error(key))
	}
	return int64(n), nil
}

// foreignDoor is an error if a door is not one that a waiter shut.
func (s *Store) foreignDoor(door string) error {
	v, held, err := s.Text(door)
	switch token, _, ok := strings.Cut(v, "@"); {
	case err != nil:
		return wrongTypeOf(door)
	case held && (!ok || token == "" || strings.Trim(token, "0123456789abcdefABCDEF") != ""):
		return Error("WRONGTYPE a value of others: " + door)
	}
	return nil
}

// shut is door.lua.
func (s *Store) shut(keys, argv []string, op *Op) (any, error) {
	door := keys[0]
	if err := s.foreignDoor(door); err != nil {
		return nil, err
	}
	s.Set(door, argv[0], Number(argv[1]), op)
	return "OK", nil
}

// nextToken is that of fence_counter.lua.
func (s *Store) nextToken(counter string, proposal int64) (int64, error) {
	c, err := s.counter(counter)
	if err != nil {
		return 0, err
	}
	now := s.Micros()
	token := max(now-1000000, min(now+1000000, proposal))
	token = max(c+1, token)
	if token > mostFence {
		return 0, Error("BADFENCE the fencing counter has reached its end")
	}
	return token, nil
}

func (s *Store) fence(keys, argv []string, op *Op) (any, error) {
	lock, counter := keys[0], keys[1]
	fence, err := s.nextToken(counter, Number(argv[2]))
	if err != nil {
		return nil, err
	}
	claimed := false
	if len(keys) > 2 {
		if err := s.leave(keys[2], argv[4]); err != nil {
			return nil, err
		}
		v, ok, err := s.Text(lock)
		if err != nil {
			return nil, err
		}
		claimed = ok && v == argv[0]
	}
	if !claimed && s.Get(lock) != nil {
		return nil, nil
	}
	s.Set(counter, strconv.FormatInt(fence, 10), Number(argv[3]), op)
	if !claimed {
		s.Set(lock, argv[0], Number(argv[1]), op)
	} else if s.Pttl(lock) < Number(argv[1]) {
		s.ExpireIn(lock, Number(argv[1]), op)
	}
	return fence, nil
}

func (s *Store) adopt(keys, argv []string, op *Op) (any, error) {
	lock, token := keys[0], argv[2]
	op.Ended = token
	v, ok, err := s.Text(lock)
	if err != nil {
		return nil, err
	}
	if !ok || v != token && !strings.HasPrefix(v, token+"@") {
		return orZero(v, ok), nil
	}
	fence := int64(1)
	if len(keys) > 1 {
		if fence, err = s.nextToken(keys[1], Number(argv[3])); err != nil {
			return nil, err
		}
		s.Set(keys[1], strconv.FormatInt(fence, 10), Number(argv[4]), op)
	}
	s.Set(lock, argv[0], Number(argv[1]), op)
	return fence, nil
}

func (s *Store) raise(keys, argv []string, op *Op) (any, error) {
	lock, counter := keys[0], keys[1]
	v, ok, err := s.Text(lock)
	if err != nil {
		return nil, err
	}
	if !ok || v != argv[0] {
		return orZero(v, ok), nil
	}
	c, err := s.counter(counter)
	if err != nil {
		return nil, err
	}
	if c < Number(argv[1]) {
		s.Set(counter, argv[1], Number(argv[2]), op)
	}
	return int64(1), nil
}

func (s *Store) fenceRepair(keys, argv []string, op *Op) (any, error) {
	lock, counter := keys[0], keys[1]
	c, err := s.counter(counter)
	if err != nil {
		return nil, err
	}
	if s.Get(lock) != nil {
		return nil, nil
	}
	if c < Number(argv[2]) {
		s.Set(counter, argv[2], Number(argv[3]), op)
	}
	s.Set(lock, argv[0], Number(argv[1]), op)
	return "OK", nil
}

func (s *Store) force(keys, argv []string, op *Op) (any, error) {
	op.Value, op.Ended = "", argv[0] // it ends what others have
	lock, line := keys[0], argv[1]
	holders := "{" + lock + "}:shared"
	if len(argv) > 2 {
		holders = argv[2]
	}
	was, _, _ := s.Text(lock)
	shared := false
	if argv[0] != "" {
		v, ok, err := s.Text(lock)
		if err != nil {
			return nil, err
		}
		if shared = ok && v == Marker; !shared && ok && v != argv[0] && !strings.HasPrefix(v, argv[0]+"@") {
			return v, nil
		}
	}
	deleted := int64(0)
	if shared {
		var err error
		if deleted, err = s.forceShared(lock, holders, argv[0], op); err != nil {
			return nil, err
		}
	} else {
		deleted = Truth(s.Get(lock) != nil)
		s.Del(lock, op)
	}
	answer := any(deleted)
	v, ok, err := s.Text(lock)
	if deleted == 0 {
		answer = orZero(v, ok)
	}
	if err == nil && (!ok || v == Marker) && s.Typ(line) == "zset" {
		if head := s.headOf(line); head != "" && ValueIn(head) == was {
			s.zrem(line, head, "woken "+head)
		}
		s.serve(lock, holders, line, AtOnce, "", false, op)
	}
	return answer, nil
}

func (s *Store) inspect(keys, argv []string, _ *Op) (any, error) {
	lock := keys[0]
	t, v := s.Typ(lock), ""
	if t == "string" {
		v, _, _ = s.Text(lock)
	}
	line, holders := argv[0], "{"+lock+"}:shared"
	if len(argv) > 2 {
		holders = argv[2]
	}
	var waiting []string
	if line != "" && s.headOf(line) != "" {
		waiting = s.Waiting(line)
	}
	list := []any{}
	for _, m := range waiting[:min(len(waiting), int(Number(argv[1])))] {
		list = append(list, m, s.Micros()-int64(s.Keys[line].Zset[m]))
	}
	found := []any{t, v, s.Pttl(lock), int64(len(waiting)), list}
	if v == Marker {
		found = append(found, s.sharers(holders, Number(argv[1])))
	}
	return found, nil
}

// remind is that of line.lua.
func (s *Store) remind(lock, holders, member string) (reserved bool) {
	process, _, value, limit := EntryMode(member)
	v, held, _ := s.Text(lock)
	text := nameOf(process, value)
	if held && v == Marker && limit >= 0 {
		var number int64
		if _, number, reserved = s.Have(holders, value); reserved {
			text = addNotice("", number, process, value)
		}
	}
	reserved = reserved || held && v == value
	if reserved || !held {
		s.notify(process, text)
	}
	return reserved
}

// addNotice is add of line.lua.
func addNotice(text string, number int64, process, value string) string {
	if text != "" {
		text += " "
	}
	return fmt.Sprint(text, number, " ", nameOf(process, value))
}

// nameOf is that of line.lua.
func nameOf(process, value string) string {
	digits := 32
	if strings.HasSuffix(process, ".") {
		digits = 16
	}
	return value[:min(digits, len(value))]
}

const AtOnce = 64

// Score is that of a member of a line.
func (s *Store) Score(line, member string) (score float64, ok bool) {
	if k := s.Get(line); k != nil {
		score, ok = k.Zset[member]
	}
	return score, ok
}

// nth is the waiter that so many came before, of those who came at a time or later.
func (s *Store) nth(line string, from float64, at int) (member string) {
	for _, m := range s.Waiting(line) {
		if score, _ := s.Score(line, m); score < from {
			continue
		}
		if at == 0 {
			return m
		}
		at--
	}
	return ""
}

// leave is that of line.lua.
func (s *Store) leave(line, member string) error {
	process, _, _ := entryParts(member)
	_, err := s.zset(line)
	if err == nil {
		s.zrem(line, member, "woken "+member, "silent "+process)
	}
	return err
}

// headOf is that of line.lua.
func (s *Store) headOf(line string) string {
	if _, err := s.zset(line); err != nil {
		return ""
	}
	head := s.nth(line, 0, 0)
	if process, _, _ := entryParts(head); process == "" {
		return ""
	}
	return head
}

// known is that of line.lua.
func known(member string) bool {
	process, _, _ := entryParts(member)
	return process != "" || member == "told" || strings.HasPrefix(member, "woken ") || strings.HasPrefix(member, "silent ")
}

// highest is the member of a sorted set with the greatest score; of several the last.
func (s *Store) highest(key string) (member string, score float64) {
	if k := s.Get(key); k != nil {
		for m, at := range k.Zset {
			if member == "" || at > score || at == score && m > member {
				member, score = m, at
			}
		}
	}
	return member, score
}

// farthest is how many waiters of a line serve looks at to take out those of dead processes. Lines
// here are shorter.
const farthest = 3000

// serving is what serve knows while it goes along a line.
type serving struct {
	lock, holders, line, mine string
	most, looks, far, at      int
	from, told                float64
	now                       int64
	op                        *Op
}

// served is a waiter that serve meets.
type served struct {
	member, process, value string
	limit, left            int64
	arrival                float64
	woken                  bool
}

// nextOf is that of line.lua; nil: there is none.
//
// gocognit: line by line what the script does, so that the two can be compared.
func (s *Store) nextOf(q *serving) *served {
	for ; q.looks > 0; q.looks-- {
		member := s.nth(q.line, q.from, q.at)
		if member == "" {
			if last, score := s.highest(q.line); q.at == 0 && (last == "" || score < 0) {
				q.told = 0
				if last != "" && known(last) {
					s.Del(q.line, q.op)
				}
			}
			return nil
		}
		process, grace, value, limit := EntryMode(member)
		if process == "" {
			return nil
		}
		arrival, _ := s.Score(q.line, member)
		w := &served{member: member, process: process, value: value, limit: limit, left: grace * 1000, arrival: arrival}
		var till float64
		if till, w.woken = s.Score(q.line, "woken "+member); w.woken {
			w.left = min(w.left, -int64(till)-q.now)
		}
		silent, there := s.Score(q.line, "silent "+process)
		dead := there && -int64(silent) <= q.now && (w.left <= 0 || !w.woken)
		if w.left > 0 && !dead {
			if !there && !w.woken {
				s.Zadd(q.line, float64(-(q.now + w.left)), "silent "+process)
			}
			q.looks--
			return w
		}
		switch {
		case !dead:
			s.zrem(q.line, member, "woken "+member)
		case q.far > 0:
			s.forget(q)
		default:
			return nil
		}
	}
	return nil
}

// forget is that of line.lua.
func (s *Store) forget(q *serving) {
	all := s.Waiting(q.line)
	q.far -= len(all)
	var dead []string
	for _, m := range all {
		process, _, _ := strings.Cut(m, " ")
		silent, there := s.Score(q.line, "silent "+process)
		if arrival, _ := s.Score(q.line, m); arrival >= q.from && there && -int64(silent) <= q.now {
			s.zrem(q.line, m, "woken "+m)
			dead = append(dead, "silent "+process)
		}
	}
	s.zrem(q.line, dead...)
	q.at = 0
}

// reserve is that of line.lua.
func (s *Store) reserve(q *serving, w *served) {
	if w.woken {
		return
	}
	till := float64(-(q.now + w.left))
	s.Zadd(q.line, till, "woken "+w.member)
	if silent, _ := s.Score(q.line, "silent "+w.process); silent < till {
		s.Zadd(q.line, till, "silent "+w.process)
	}
}

// together is that of line.lua.
//
// gocognit: line by line what the script does, so that the two can be compared.
func (s *Store) together(q *serving, w *served, free bool) (last string, ok, denied bool, failed error) {
	ms, shared, past, come := q.now/1000, !free, false, 0
	var processes []string
	notices := make(map[string]string)
	for ; w != nil; w = s.nextOf(q) {
		listed, in, number := false, false, int64(0)
		if w.woken && shared {
			_, _, listed = s.Have(q.holders, w.value)
		}
		if w.limit < 0 {
			past = true
		} else if !listed {
			if !shared {
				if failed = s.purge(false, q.holders, ms, q.op); failed != nil {
					return "", false, false, failed
				}
			}
			if come < q.most {
				number, in = s.list(q.lock, q.holders, w.value, (w.left+999)/1000, w.limit, ms, q.op)
			}
		}
		if !listed && !in && !(free && w.limit < 0) {
			break
		}
		if in {
			s.reserve(q, w)
			if w.value != q.mine {
				if notices[w.process] == "" {
					processes = append(processes, w.process)
				}
				notices[w.process] = addNotice(notices[w.process], number, w.process, w.value)
			}
			come, last, shared = come+1, w.value, true
		}
		q.at++
		if !past {
			q.told = -w.arrival
		}
	}
	if q.told != 0 {
		s.Zadd(q.line, q.told, "told")
	}
	if come > 0 {
		s.settle(q.lock, q.holders, ms, q.op)
	}
	for _, process := range processes {
		denied = s.notify(process, notices[process]) || denied
	}
	return last, come > 0, denied, nil
}

// serve is that of line.lua.
func (s *Store) serve(lock, holders, line string, most int, mine string, all bool, op *Op) (last string, ok, denied bool, failed error) {
	now := s.Micros()
	v, held, err := s.Text(lock)
	if err != nil || held && v != Marker {
		return "", false, false, nil
	}
	if held {
		if failed = s.purge(true, holders, now/1000, op); failed != nil {
			return "", false, false, failed
		}
		if s.Get(holders) == nil {
			s.Del(lock, op)
			held = false
		}
	}
	q := &serving{lock: lock, holders: holders, line: line, mine: mine, most: most, looks: 2 * most, far: farthest, now: now, op: op}
	if !all && held {
		told, _ := s.Score(line, "told")
		q.from = -told
	}
	w := s.nextOf(q)
	if w != nil && w.limit < 0 && !held {
		s.reserve(q, w)
		s.Set(lock, w.value, (w.left+999)/1000, op)
		return w.value, true, w.value != mine && s.notify(w.process, nameOf(w.process, w.value)), nil
	}
	return s.together(q, w, !held)
}

// notify is that of line.lua.
func (s *Store) notify(process, text string) (denied bool) {
	if !s.Mute {
		s.Publish("redlock:"+process, text)
	}
	return s.Mute
}

func (s *Store) claim(keys, argv []string, op *Op) (any, error) {
	lock := keys[0]
	v, ok, err := s.Text(lock)
	if err != nil {
		return nil, err
	}
	if err := s.leave(keys[1], argv[2]); err != nil {
		return nil, err
	}
	if ok && v == argv[0] {
		if s.Pttl(lock) < Number(argv[1]) {
			s.ExpireIn(lock, Number(argv[1]), op)
		}
		return "OK", nil
	}
	if s.Get(lock) != nil {
		return nil, nil
	}
	s.Set(lock, argv[0], Number(argv[1]), op)
	return "OK", nil
}

// join is line_join.lua.
//
// gocognit: line by line what the script does, so that the two can be compared.
func (s *Store) join(keys, argv []string, op *Op) (any, error) {
	lock, line := keys[0], keys[1]
	op.Value, op.Ended = ValueIn(argv[0]), ValueIn(argv[1])
	process, _, value, limit := EntryMode(argv[0])
	holders := "{" + lock + "}:shared"
	if len(argv) > 6 {
		holders = argv[6]
	}
	v, held, err := s.Text(lock)
	if err != nil {
		return nil, err
	}
	set, err := s.zset(line)
	if err != nil {
		return nil, err
	}
	place, present := set[argv[0]]
	isNew, placed := !present, present
	if last, _ := s.highest(line); isNew && last != "" && !known(last) {
		return nil, Error("WRONGTYPE a sorted set of others: " + line)
	}
	if limit >= 0 && (!held || v == Marker) {
		if err := s.purge(held, holders, s.Millis(), op); err != nil {
			return nil, err
		}
	}
	if argv[1] != "" {
		if score, ok := set[argv[1]]; ok && !placed {
			place, placed = score, true
		}
		s.zrem(line, argv[1], "woken "+argv[1])
		if held && v == ValueIn(argv[1]) {
			s.Del(lock, op)
			v, held = "", false
		} else if held && v == Marker && limit >= 0 && s.strike(lock, holders, ValueIn(argv[1]), op) {
			s.settle(lock, holders, s.Millis(), op)
			v, held, _ = s.Text(lock)
		}
	}
	if isNew {
		if !placed {
			place = float64(Number(argv[2]))
		}
		if place == 0 {
			place = float64(s.Micros() - Number(argv[3]))
			if last, ok := s.last(line); ok && argv[3] == "0" && place <= last {
				place = last + 1
			}
		}
		s.Zadd(line, place, argv[0])
		if told, ok := s.Score(line, "told"); ok && place <= -told {
			s.Zadd(line, -place, "told")
		}
	}
	s.Zadd(line, float64(-(s.Micros() + Number(argv[5])*1000)), "silent "+process)
	s.ExpireIn(line, Number(argv[4]), op)
	denied := false
	if !held || v == Marker {
		var failed error
		if _, _, denied, failed = s.serve(lock, holders, line, AtOnce, value, !isNew, op); failed != nil && !held {
			return nil, failed
		}
		v, held, _ = s.Text(lock)
	}
	ours, left, given := Truth(held && v == value), s.Pttl(lock), ""
	if held && v == Marker && limit >= 0 {
		if _, number, listed := s.Have(holders, value); listed {
			ours = number + 1
		}
		if limit > 0 {
			left = max(s.earliest(holders)-s.Millis(), 1)
		}
	}
	if held && v == Marker && !isNew {
		given = s.given(line, holders, process)
	}
	ahead := int64(0)
	if k := s.Get(line); k != nil {
		for _, score := range k.Zset {
			if score >= 0 && score < place {
				ahead++
			}
		}
	}
	if ahead > 0 && !isNew && held && v != Marker {
		s.nextOf(&serving{line: line, looks: 2 * AtOnce, far: farthest, now: s.Micros(), op: op})
	}
	answer := []any{ours, ahead, left, int64(place), Truth(isNew), Truth(denied), v}
	if given != "" {
		answer = append(answer, given)
	}
	return answer, nil
}

// earliest is when the first of those who share a lock is struck.
func (s *Store) earliest(holders string) int64 {
	first := math.Inf(1)
	for _, score := range s.Get(holders).Zset {
		first = min(first, score)
	}
	return int64(first) / Numbers
}

// given is for whom of a process the lock is reserved together with others.
func (s *Store) given(line, holders, process string) (all string) {
	k := s.Get(line)
	if k == nil {
		return all
	}
	set := k.Zset
	members := slices.Sorted(maps.Keys(set))
	slices.SortStableFunc(members, func(a, b string) int { return cmp.Compare(set[a], set[b]) })
	for _, m := range members[:min(len(members), 8*AtOnce)] {
		if entry, ok := strings.CutPrefix(m, "woken "+process+" "); ok {
			value := ValueIn(process + " " + entry)
			if _, number, listed := s.Have(holders, value); listed {
				all = addNotice(all, number, process, value)
			}
		}
	}
	return all
}

// last is the greatest score of a line, as ZREVRANGE 0 0 has it.
func (s *Store) last(line string) (score float64, ok bool) {
	k := s.Get(line)
	if k == nil {
		return 0, false
	}
	for _, sc := range k.Zset {
		if !ok || sc > score {
			score, ok = sc, true
		}
	}
	return score, ok
}

func Truth(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// deleteIfEqual is DELIFEQ of Valkey 9, and DELEX with IFEQ of Redis 8.4.
func (s *Store) deleteIfEqual(lock, value string, op *Op) (any, error) {
	switch v, ok, err := s.Text(lock); {
	case err != nil:
		return nil, err
	case !ok || v != value:
		return int64(0), nil
	}
	s.Del(lock, op)
	return int64(1), nil
}

func (s *Store) release(keys, argv []string, op *Op) (any, error) {
	lock := keys[0]
	v, ok, err := s.Text(lock)
	if err != nil {
		return nil, err
	}
	if ok && v == argv[0] {
		s.Del(lock, op)
		return int64(1), nil
	}
	return orZero(v, ok), nil
}

func (s *Store) releaseMany(locks, argv []string, op *Op) (any, error) {
	if s.NoMGet {
		return nil, Error("NOPERM this user has no permissions to run the 'mget' command")
	}
	n := len(locks)
	lines := argv[n:]
	ours, others := []int{}, []any{}
	for i, lock := range locks {
		v, ok, err := s.Text(lock)
		waits := i < len(lines) && s.Typ(lines[i]) == "zset"
		if err == nil && ok && v == argv[i] && !waits {
			ours = append(ours, i)
		} else {
			others = append(others, int64(i+1))
		}
	}
	for _, i := range ours {
		s.Del(locks[i], &Op{Req: op.Req, Value: argv[i]})
	}
	return others, nil
}

// passOn is that of line.lua.
func (s *Store) passOn(lock, holders, line string, ours bool, role string, op *Op) any {
	reserved, denied := false, false
	if role != "2" {
		_, reserved, denied, _ = s.serve(lock, holders, line, AtOnce, "", false, op)
	}
	head := s.headOf(line)
	if head != "" && !reserved && role != "0" && (!ours || role == "2") {
		reserved = s.remind(lock, holders, head)
	}
	switch {
	case ours && denied:
		return int64(protocol.PublishDenied)
	case ours && head != "":
		return int64(protocol.OthersWait)
	case ours:
		return int64(1)
	case reserved:
		return int64(protocol.OthersTurn)
	}
	v, held, _ := s.Text(lock)
	return orZero(v, held)
}

// lineRelease is line_release.lua.
//
// gocognit: line by line what the script does, so that the two can be compared.
func (s *Store) lineRelease(keys, argv []string, op *Op) (any, error) {
	lock := keys[0]
	line, entry, role, holders := "{"+lock+"}:line", "", "1", "{"+lock+"}:shared"
	if len(argv) > 4 {
		holders = argv[4]
	}
	if len(argv) > 1 {
		entry, role = argv[2], argv[3]
		if argv[1] != "" {
			line = argv[1]
		}
	}
	v, ok, err := s.Text(lock)
	if err != nil {
		return nil, err
	}
	if s.Typ(line) != "zset" {
		return s.release(keys, argv, op)
	}
	if entry != "" {
		_ = s.leave(line, entry)
	}
	ours := ok && v == argv[0]
	if ours {
		s.Del(lock, op)
	}
	return s.passOn(lock, holders, line, ours, role, op), nil
}

func (s *Store) mark(keys, argv []string, op *Op) (any, error) {
	return s.Mark(keys[0], argv, op)
}

// Mark is mark.lua.
func (s *Store) Mark(key string, argv []string, op *Op) (any, error) {
	v, _, err := s.Text(key)
	if err != nil {
		return nil, err
	}
	if v == argv[0] {
		at := argv[2]
		if at == "" {
			at = strconv.FormatInt(s.Micros(), 10)
		}
		v = argv[1] + " " + at + " " + argv[3]
		s.Set(key, v, 0, op)
	}
	return []any{v, s.Micros()}, nil
}

// Serves: the request may reserve the lock for others, who wait.
func (op *Op) Serves() bool {
	return op.Req.Queue != nil || op.Req.Script == protocol.ForceScript || op.Req.Script == protocol.QueueReleaseScript
}

// Epoch is a time to begin at, in nanoseconds since 1970.
var Epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()

// Copy is all keys as they are now.
func (s *Store) Copy() map[string]*Key {
	all := make(map[string]*Key, len(s.Keys))
	for name, k := range s.Keys {
		c := *k
		c.Zset = maps.Clone(k.Zset)
		all[name] = &c
	}
	return all
}
