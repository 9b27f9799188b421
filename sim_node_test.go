package redlock

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// memory of a simulated server: the part of Redis that the library uses, with the scripts
// in Go. That it answers as a server does is what contract_test.go shows, case by case.
type memStore struct {
	now     func() int64 // nanoseconds of the server's wall clock since 1970
	keys    map[string]*memKey
	scripts map[*script]bool // that it was sent whole
	publish func(channel, message string)
	mute    bool // nobody may publish
	watch   memWatch
}

// memKey is what lies under a key: a string, a sorted set, or something else.
type memKey struct {
	str    string
	zset   map[string]float64
	other  string // the type of what is no string and no sorted set
	expire int64  // milliseconds since 1970; 0: never
}

// memWatch is told what becomes of strings, which locks are. The op is the request's.
type memWatch interface {
	put(key, value string, expire int64, op *memOp)
	prolonged(key, value string, expire int64, op *memOp)
	removed(key, value string, op *memOp)
	// listed and struck: of those who share a lock. till is in milliseconds since 1970.
	listed(key, value string, number, till int64, op *memOp)
	struck(key, value string, op *memOp)
}

// memOp is who does something.
type memOp struct {
	req   *request
	value string // of the lock that the request is about
	ended string // and of the attempt before
}

type nobody struct{}

func (nobody) put(string, string, int64, *memOp)       {}
func (nobody) prolonged(string, string, int64, *memOp) {}
func (nobody) removed(string, string, *memOp)          {}

func (nobody) listed(string, string, int64, int64, *memOp) {}
func (nobody) struck(string, string, *memOp)               {}

func newMemStore(now func() int64) *memStore {
	return &memStore{
		now: now, keys: make(map[string]*memKey), scripts: make(map[*script]bool),
		publish: func(string, string) {}, watch: nobody{},
	}
}

// memError is an answer that is an error.
type memError string

func (e memError) Error() string { return string(e) }
func (memError) RedisError()     {}

func wrongTypeOf(key string) memError { return wrongType + memError(": "+key) }

const wrongType = memError("WRONGTYPE Operation against a key holding the wrong kind of value")

func (s *memStore) millis() int64 { return s.now() / int64(time.Millisecond) }
func (s *memStore) micros() int64 { return s.now() / int64(time.Microsecond) }

// get is what is under a key now.
func (s *memStore) get(key string) *memKey {
	k := s.keys[key]
	if k != nil && k.expire > 0 && s.millis() > k.expire {
		delete(s.keys, key)
		return nil
	}
	return k
}

func (s *memStore) set(key, value string, px int64, op *memOp) {
	at := int64(0)
	if px > 0 {
		at = s.millis() + px
	}
	if k := s.get(key); k != nil {
		s.watch.removed(key, k.str, op)
	}
	s.keys[key] = &memKey{str: value, expire: at}
	s.watch.put(key, value, at, op)
}

func (s *memStore) del(key string, op *memOp) {
	if k := s.get(key); k != nil {
		delete(s.keys, key)
		s.watch.removed(key, k.str, op)
	}
}

func (s *memStore) expireIn(key string, px int64, op *memOp) {
	k := s.get(key)
	if k == nil {
		return
	}
	if px <= 0 {
		s.del(key, op)
		return
	}
	k.expire = s.millis() + px
	s.watch.prolonged(key, k.str, k.expire, op)
}

func (s *memStore) pttl(key string) int64 {
	switch k := s.get(key); {
	case k == nil:
		return -2
	case k.expire == 0:
		return -1
	default:
		return k.expire - s.millis()
	}
}

func (s *memStore) typ(key string) string {
	switch k := s.get(key); {
	case k == nil:
		return "none"
	case k.zset != nil:
		return "zset"
	case k.other != "":
		return k.other
	default:
		return "string"
	}
}

// text is GET.
func (s *memStore) text(key string) (value string, ok bool, err error) {
	switch k := s.get(key); {
	case k == nil:
		return "", false, nil
	case k.zset != nil || k.other != "":
		return "", false, wrongType
	default:
		return k.str, true, nil
	}
}

// The sorted set of a line. Missing ones read as empty.

func (s *memStore) zset(key string) (map[string]float64, error) {
	switch k := s.get(key); {
	case k == nil:
		return nil, nil
	case k.zset == nil:
		return nil, wrongTypeOf(key)
	default:
		return k.zset, nil
	}
}

func (s *memStore) zadd(key string, score float64, member string) {
	if s.get(key) == nil {
		s.keys[key] = &memKey{zset: make(map[string]float64)}
	}
	s.keys[key].zset[member] = score
}

func (s *memStore) zrem(key string, members ...string) (n int) {
	k := s.get(key)
	if k == nil {
		return 0
	}
	for _, m := range members {
		if _, ok := k.zset[m]; ok {
			delete(k.zset, m)
			n++
		}
	}
	if len(k.zset) == 0 {
		delete(s.keys, key)
	}
	return n
}

// waiting is the members with a score of at least 0, first come first.
func (s *memStore) waiting(key string) (members []string) {
	k := s.get(key)
	if k == nil {
		return nil
	}
	for m, score := range k.zset {
		if score >= 0 {
			members = append(members, m)
		}
	}
	slices.SortFunc(members, func(a, b string) int {
		if d := k.zset[a] - k.zset[b]; d != 0 {
			return int(math.Copysign(1, d))
		}
		return strings.Compare(a, b)
	})
	return members
}

// do answers a request as the server would: a value as go-redis reads it, or an error.
func (s *memStore) do(req *request) (any, error) {
	plain := req.values()
	args := make([]string, len(plain))
	for i, a := range plain {
		args[i] = argument(a)
	}
	if req.native != noNative {
		value := args[len(args)-1]
		return s.deleteIfEqual(args[1], value, &memOp{req: req, value: value})
	}
	if req.script == nil {
		return s.command(args, &memOp{req: req, value: args[2]})
	}
	if !req.whole && !s.scripts[req.script] {
		return nil, memError("NOSCRIPT No matching script. Please use EVAL.")
	}
	s.scripts[req.script] = true
	n, _ := strconv.Atoi(args[2])
	keys, argv := args[3:3+n], args[3+n:]
	op := &memOp{req: req}
	switch req.script {
	case releaseScript:
		op.value = argv[0]
		return s.release(keys[0], argv[0], op)
	case extendScript:
		op.value = argv[0]
		return s.extend(keys[0], argv, op)
	case doorScript:
		op.value = argv[0]
		return s.shut(keys[0], argv, op)
	case inspectScript:
		return s.inspect(keys[0], argv)
	case keepScript:
		op.value, op.ended = argv[0], argv[1]
		return s.keep(keys[0], argv, op)
	case queueReleaseScript:
		op.value = argv[0]
		return s.lineRelease(keys[0], argv, op)
	case joinScript:
		op.value, op.ended = valueIn(argv[0]), valueIn(argv[1])
		return s.join(keys[0], keys[1], argv, op)
	case claimScript:
		op.value = argv[0]
		return s.claim(keys[0], keys[1], argv, op)
	case fenceScript:
		op.value = argv[0]
		return s.fence(keys, argv, op)
	case adoptScript:
		op.value, op.ended = argv[0], argv[2]
		return s.adopt(keys, argv, op)
	case raiseScript:
		op.value = argv[0]
		return s.raise(keys[0], keys[1], argv, op)
	case fenceRepairScript:
		op.value = argv[0]
		return s.fenceRepair(keys[0], keys[1], argv, op)
	case sharedClaimScript:
		op.value = argv[0]
		return s.sharedClaim(keys, argv, op)
	case sharedExtendScript:
		op.value = argv[0]
		return s.sharedExtend(keys, argv, op)
	case sharedReleaseScript:
		op.value = argv[0]
		return s.sharedRelease(keys, argv, op)
	case forceScript:
		op.ended = argv[0]
		return s.force(keys[0], argv, op)
	case markScript:
		return s.mark(keys[0], argv, op)
	default:
		panic("no such script")
	}
}

func argument(a any) string {
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

func number(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}

// entryParts is parts of line.lua.
func entryParts(member string) (process string, grace int64, value string) {
	process, grace, value, _ = entryMode(member)
	return process, grace, value
}

// entryMode is entryParts with the limit of one who wants to share the lock; -1: it does not.
func entryMode(member string) (process string, grace int64, value string, limit int64) {
	f := strings.SplitN(member, " ", 3)
	if len(f) < 3 {
		return "", 0, "", -1
	}
	time, many, shares := strings.Cut(f[1], "s")
	if time == "" || strings.Trim(time+many, "0123456789") != "" || f[0] == "" {
		return "", 0, "", -1
	}
	if limit = -1; shares {
		limit = number(many)
	}
	return f[0], number(time), f[2], limit
}

func valueIn(entry string) string {
	_, _, v := entryParts(entry)
	return v
}

// command is SET with its options.
func (s *memStore) command(args []string, op *memOp) (any, error) {
	nx, px := false, int64(0)
	for i := 3; i < len(args); i++ {
		switch args[i] {
		case "NX":
			nx = true
		case "PX":
			i++
			px = number(args[i])
		}
	}
	if nx && s.get(args[1]) != nil {
		return nil, nil
	}
	s.set(args[1], args[2], px, op)
	return "OK", nil
}

// The scripts, in the order of their files.

func orZero(v string, ok bool) any {
	if !ok {
		return int64(0)
	}
	return v
}

func (s *memStore) extend(key string, argv []string, op *memOp) (any, error) {
	v, ok, err := s.text(key)
	if err != nil {
		return nil, err
	}
	if ok && v == argv[0] {
		if s.pttl(key) < number(argv[1]) {
			s.expireIn(key, number(argv[1]), op)
		}
		return int64(1), nil
	}
	return orZero(v, ok), nil
}

const mostFence = 1 << 52

func (s *memStore) counter(key string) (int64, error) {
	v, ok, err := s.text(key)
	if err != nil {
		return 0, wrongTypeOf(key)
	}
	if !ok {
		return 0, nil
	}
	n, perr := strconv.ParseUint(v, 10, 64)
	if perr != nil || len(v) > 16 || n > mostFence || v[0] == '+' {
		return 0, memError("BADFENCE the fencing counter holds no integer from 0 to 2^52: " + memError(key))
	}
	return int64(n), nil
}

// foreignDoor is an error if a door is not one that a waiter shut.
func (s *memStore) foreignDoor(door string) error {
	v, held, err := s.text(door)
	switch token, _, ok := strings.Cut(v, "@"); {
	case err != nil:
		return wrongTypeOf(door)
	case held && (!ok || token == "" || strings.Trim(token, "0123456789abcdefABCDEF") != ""):
		return memError("WRONGTYPE a value of others: " + door)
	}
	return nil
}

// shut is door.lua.
func (s *memStore) shut(door string, argv []string, op *memOp) (any, error) {
	if err := s.foreignDoor(door); err != nil {
		return nil, err
	}
	s.set(door, argv[0], number(argv[1]), op)
	return "OK", nil
}

// nextToken is that of fence_counter.lua.
func (s *memStore) nextToken(counter string, proposal int64) (int64, error) {
	c, err := s.counter(counter)
	if err != nil {
		return 0, err
	}
	now := s.micros()
	token := max(now-1000000, min(now+1000000, proposal))
	token = max(c+1, token)
	if token > mostFence {
		return 0, memError("BADFENCE the fencing counter has reached its end")
	}
	return token, nil
}

func (s *memStore) fence(keys, argv []string, op *memOp) (any, error) {
	lock, counter := keys[0], keys[1]
	fence, err := s.nextToken(counter, number(argv[2]))
	if err != nil {
		return nil, err
	}
	claimed := false
	if len(keys) > 2 {
		if err := s.leave(keys[2], argv[4]); err != nil {
			return nil, err
		}
		v, ok, err := s.text(lock)
		if err != nil {
			return nil, err
		}
		claimed = ok && v == argv[0]
	}
	if !claimed && s.get(lock) != nil {
		return nil, nil
	}
	s.set(counter, strconv.FormatInt(fence, 10), number(argv[3]), op)
	if claimed {
		s.expireIn(lock, number(argv[1]), op)
	} else {
		s.set(lock, argv[0], number(argv[1]), op)
	}
	return fence, nil
}

func (s *memStore) adopt(keys, argv []string, op *memOp) (any, error) {
	lock, token := keys[0], argv[2]
	v, ok, err := s.text(lock)
	if err != nil {
		return nil, err
	}
	if !ok || v != token && !strings.HasPrefix(v, token+"@") {
		return orZero(v, ok), nil
	}
	fence := int64(1)
	if len(keys) > 1 {
		if fence, err = s.nextToken(keys[1], number(argv[3])); err != nil {
			return nil, err
		}
		s.set(keys[1], strconv.FormatInt(fence, 10), number(argv[4]), op)
	}
	s.set(lock, argv[0], number(argv[1]), op)
	return fence, nil
}

func (s *memStore) raise(lock, counter string, argv []string, op *memOp) (any, error) {
	v, ok, err := s.text(lock)
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
	if c < number(argv[1]) {
		s.set(counter, argv[1], number(argv[2]), op)
	}
	return int64(1), nil
}

func (s *memStore) fenceRepair(lock, counter string, argv []string, op *memOp) (any, error) {
	c, err := s.counter(counter)
	if err != nil {
		return nil, err
	}
	if s.get(lock) != nil {
		return nil, nil
	}
	if c < number(argv[2]) {
		s.set(counter, argv[2], number(argv[3]), op)
	}
	s.set(lock, argv[0], number(argv[1]), op)
	return "OK", nil
}

func (s *memStore) force(lock string, argv []string, op *memOp) (any, error) {
	line, holders := argv[1], "{"+lock+"}:shared"
	if len(argv) > 2 {
		holders = argv[2]
	}
	shared := false
	if argv[0] != "" {
		v, ok, err := s.text(lock)
		if err != nil {
			return nil, err
		}
		if shared = ok && v == marker; !shared && ok && v != argv[0] && !strings.HasPrefix(v, argv[0]+"@") {
			return v, nil
		}
	}
	deleted := int64(0)
	if shared {
		var err error
		if deleted, err = s.forceShared(lock, holders, argv[0], op); err != nil {
			return nil, err
		}
		if deleted == 0 {
			v, ok, _ := s.text(lock)
			return orZero(v, ok), nil
		}
	} else {
		deleted = truth(s.get(lock) != nil)
		s.del(lock, op)
	}
	if v, ok, err := s.text(lock); err == nil && (!ok || v == marker) && s.typ(line) == "zset" {
		s.serve(lock, holders, line, atOnce, "", false, op)
	}
	return deleted, nil
}

func (s *memStore) inspect(lock string, argv []string) (any, error) {
	t, v := s.typ(lock), ""
	if t == "string" {
		v, _, _ = s.text(lock)
	}
	line, holders := argv[0], "{"+lock+"}:shared"
	if len(argv) > 2 {
		holders = argv[2]
	}
	var waiting []string
	if line != "" && s.headOf(line) != "" {
		waiting = s.waiting(line)
	}
	list := []any{}
	for _, m := range waiting[:min(len(waiting), int(number(argv[1])))] {
		list = append(list, m, s.micros()-int64(s.keys[line].zset[m]))
	}
	found := []any{t, v, s.pttl(lock), int64(len(waiting)), list}
	if v == marker {
		found = append(found, s.sharers(holders, number(argv[1])))
	}
	return found, nil
}

// remind is that of line.lua.
func (s *memStore) remind(lock, holders, member string) (reserved bool) {
	process, _, value, limit := entryMode(member)
	v, held, _ := s.text(lock)
	text := value
	if held && v == marker && limit >= 0 {
		var number int64
		if _, number, reserved = s.have(holders, value); reserved {
			text = addNotice("", number, value)
		}
	}
	reserved = reserved || held && v == value
	if reserved || !held {
		s.notify(process, text)
	}
	return reserved
}

// addNotice is add of line.lua.
func addNotice(text string, number int64, value string) string {
	if text != "" {
		text += " "
	}
	return fmt.Sprint(text, number, " ", value[:min(32, len(value))])
}

const atOnce = 64

// score is that of a member of a line.
func (s *memStore) score(line, member string) (score float64, ok bool) {
	if k := s.get(line); k != nil {
		score, ok = k.zset[member]
	}
	return score, ok
}

// nth is the waiter that so many came before, of those who came at a time or later.
func (s *memStore) nth(line string, from float64, at int) (member string) {
	for _, m := range s.waiting(line) {
		if score, _ := s.score(line, m); score < from {
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
func (s *memStore) leave(line, member string) error {
	process, _, _ := entryParts(member)
	_, err := s.zset(line)
	if err == nil {
		s.zrem(line, member, "woken "+member, "silent "+process)
	}
	return err
}

// headOf is that of line.lua.
func (s *memStore) headOf(line string) string {
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
func (s *memStore) highest(key string) (member string, score float64) {
	if k := s.get(key); k != nil {
		for m, at := range k.zset {
			if member == "" || at > score || at == score && m > member {
				member, score = m, at
			}
		}
	}
	return member, score
}

// farthest is how many waiters of a line serve looks at to take out those of a dead process. Lines
// here are shorter.
const farthest = 5000

// serve is that of line.lua.
func (s *memStore) serve(lock, holders, line string, most int, mine string, all bool, op *memOp) (last string, ok, denied bool) {
	now := s.micros()
	ms := now / 1000
	v, held, err := s.text(lock)
	if err != nil || held && v != marker {
		return "", false, false
	}
	if held {
		if s.purge(true, holders, ms, op) != nil {
			return "", false, false
		}
		if s.get(holders) == nil {
			s.del(lock, op)
			held = false
		}
	}
	told := 0.0
	if !all && held {
		told, _ = s.score(line, "told")
	}
	from, before := -told, told
	first, past, at, come, far := !held, false, 0, 0, farthest
	var processes []string
	notices := make(map[string]string)
loop:
	for range 2 * most {
		member := s.nth(line, from, at)
		if member == "" {
			if last, score := s.highest(line); at == 0 && (last == "" || score < 0) {
				told = before
				if last != "" && known(last) {
					s.del(line, op)
				}
			}
			break
		}
		process, grace, value, limit := entryMode(member)
		if process == "" {
			break
		}
		left := grace * 1000
		till, woken := s.score(line, "woken "+member)
		if woken {
			left = min(left, -int64(till)-now)
		}
		tell := func() {
			if woken {
				return
			}
			s.zadd(line, float64(-(now + left)), "woken "+member)
			if _, there := s.score(line, "silent "+process); !there {
				s.zadd(line, float64(-(now + left)), "silent "+process)
			}
		}
		silent, there := s.score(line, "silent "+process)
		dead := there && -int64(silent) <= now && (left <= 0 || !woken)
		switch {
		case left <= 0 || dead:
			s.zrem(line, member, "woken "+member)
			if dead && far <= 0 {
				break loop
			}
			if dead {
				far -= len(s.waiting(line))
				s.zrem(line, "silent "+process)
				for _, m := range s.waiting(line) {
					if strings.HasPrefix(m, process+" ") {
						s.zrem(line, m, "woken "+m)
					}
				}
				at = 0
			}
			continue
		case limit < 0 && come == 0 && at == 0 && !held:
			tell()
			s.set(lock, value, (left+999)/1000, op)
			return value, true, value != mine && s.notify(process, value)
		case limit < 0:
			if !first {
				break loop
			}
			past = true
			at++
			continue
		}
		if _, _, listed := s.have(holders, value); !woken || !held || !listed {
			if !held && s.purge(false, holders, ms, op) != nil {
				return "", false, false
			}
			number, ok := int64(0), come < most
			if ok {
				number, ok = s.list(lock, holders, value, (left+999)/1000, limit, ms, op)
			}
			if !ok {
				break loop
			}
			tell()
			if value != mine {
				if notices[process] == "" {
					processes = append(processes, process)
				}
				notices[process] = addNotice(notices[process], number, value)
			}
			come, last, held = come+1, value, true
		}
		at++
		if !past {
			score, _ := s.score(line, member)
			told = -score
		}
	}
	if told != 0 && told != before {
		s.zadd(line, told, "told")
	}
	if come > 0 {
		s.settle(lock, holders, ms, op)
	}
	for _, process := range processes {
		denied = s.notify(process, notices[process]) || denied
	}
	return last, come > 0, denied
}

// notify is that of line.lua.
func (s *memStore) notify(process, text string) (denied bool) {
	if !s.mute {
		s.publish("redlock:"+process, text)
	}
	return s.mute
}

func (s *memStore) claim(lock, line string, argv []string, op *memOp) (any, error) {
	v, ok, err := s.text(lock)
	if err != nil {
		return nil, err
	}
	if err := s.leave(line, argv[2]); err != nil {
		return nil, err
	}
	if ok && v == argv[0] {
		s.expireIn(lock, number(argv[1]), op)
		return "OK", nil
	}
	if s.get(lock) != nil {
		return nil, nil
	}
	s.set(lock, argv[0], number(argv[1]), op)
	return "OK", nil
}

func (s *memStore) join(lock, line string, argv []string, op *memOp) (any, error) {
	process, _, value, limit := entryMode(argv[0])
	holders := "{" + lock + "}:shared"
	if len(argv) > 5 {
		holders = argv[5]
	}
	v, held, err := s.text(lock)
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
		return nil, memError("WRONGTYPE a sorted set of others: " + line)
	}
	if limit >= 0 && (!held || v == marker) {
		if err := s.purge(held, holders, s.millis(), op); err != nil {
			return nil, err
		}
	}
	if argv[1] != "" {
		if score, ok := set[argv[1]]; ok && !placed {
			place, placed = score, true
		}
		s.zrem(line, argv[1], "woken "+argv[1])
		if held && v == valueIn(argv[1]) {
			s.del(lock, op)
			v, held = "", false
		} else if held && v == marker && limit >= 0 && s.strike(lock, holders, valueIn(argv[1]), op) {
			s.settle(lock, holders, s.millis(), op)
			v, held, _ = s.text(lock)
		}
	}
	if isNew {
		if !placed {
			place = float64(number(argv[2]))
		}
		if place == 0 {
			place = float64(s.micros() - number(argv[3]))
			if last, ok := s.last(line); ok && argv[3] == "0" && place <= last {
				place = last + 1
			}
		}
		s.zadd(line, place, argv[0])
		if told, ok := s.score(line, "told"); ok && place <= -told {
			s.zadd(line, -place, "told")
		}
	}
	s.zrem(line, "silent "+process)
	s.expireIn(line, number(argv[4]), op)
	denied := false
	if !held || v == marker {
		_, _, denied = s.serve(lock, holders, line, atOnce, value, !isNew, op)
		v, held, _ = s.text(lock)
	}
	ours, left, given := truth(held && v == value), s.pttl(lock), ""
	if held && v == marker && limit >= 0 {
		if _, number, listed := s.have(holders, value); listed {
			ours = number + 1
		}
		if limit > 0 {
			left = max(s.earliest(holders)-s.millis(), 1)
		}
	}
	if held && v == marker && !isNew {
		given = s.given(line, holders, process)
	}
	ahead := int64(0)
	if k := s.get(line); k != nil {
		for _, score := range k.zset {
			if score >= 0 && score < place {
				ahead++
			}
		}
	}
	answer := []any{ours, ahead, left, int64(place), truth(isNew), truth(denied), v}
	if given != "" {
		answer = append(answer, given)
	}
	return answer, nil
}

// earliest is when the first of those who share a lock is struck.
func (s *memStore) earliest(holders string) int64 {
	first := math.Inf(1)
	for _, score := range s.get(holders).zset {
		first = min(first, score)
	}
	return int64(first) / numbers
}

// given is for whom of a process the lock is reserved together with others.
func (s *memStore) given(line, holders, process string) (all string) {
	k := s.get(line)
	if k == nil {
		return all
	}
	set := k.zset
	members := slices.Sorted(maps.Keys(set))
	slices.SortStableFunc(members, func(a, b string) int { return cmp.Compare(set[a], set[b]) })
	for _, m := range members[:min(len(members), 4*atOnce)] {
		if entry, ok := strings.CutPrefix(m, "woken "+process+" "); ok {
			value := valueIn(process + " " + entry)
			if _, number, listed := s.have(holders, value); listed {
				all = addNotice(all, number, value)
			}
		}
	}
	return all
}

// last is the greatest score of a line, as ZREVRANGE 0 0 has it.
func (s *memStore) last(line string) (score float64, ok bool) {
	k := s.get(line)
	if k == nil {
		return 0, false
	}
	for _, sc := range k.zset {
		if !ok || sc > score {
			score, ok = sc, true
		}
	}
	return score, ok
}

func truth(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// deleteIfEqual is DELIFEQ of Valkey 9, and DELEX with IFEQ of Redis 8.4.
func (s *memStore) deleteIfEqual(lock, value string, op *memOp) (any, error) {
	switch v, ok, err := s.text(lock); {
	case err != nil:
		return nil, err
	case !ok || v != value:
		return int64(0), nil
	}
	s.del(lock, op)
	return int64(1), nil
}

func (s *memStore) release(lock, value string, op *memOp) (any, error) {
	v, ok, err := s.text(lock)
	if err != nil {
		return nil, err
	}
	if ok && v == value {
		s.del(lock, op)
		return int64(1), nil
	}
	return orZero(v, ok), nil
}

func (s *memStore) keep(lock string, argv []string, op *memOp) (any, error) {
	v, ok, err := s.text(lock)
	switch {
	case err != nil:
		return nil, err
	case !ok || v != argv[0] && v != argv[1]:
		return orZero(v, ok), nil
	case argv[2] == "0":
		s.del(lock, op)
	case v == argv[0] || s.pttl(lock) > number(argv[2]):
		s.set(lock, argv[1], number(argv[2]), op)
	}
	return int64(1), nil
}

func (s *memStore) lineRelease(lock string, argv []string, op *memOp) (any, error) {
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
	v, ok, err := s.text(lock)
	if err != nil {
		return nil, err
	}
	if s.typ(line) != "zset" {
		return s.release(lock, argv[0], op)
	}
	if entry != "" {
		_ = s.leave(line, entry)
	}
	ours, looks := ok && v == argv[0], role == "2"
	if looks || ok && !ours && v != marker {
		head := s.headOf(line)
		if ours {
			s.del(lock, op)
		}
		reserved := role != "0" && head != "" && s.remind(lock, holders, head)
		switch {
		case ours && head != "":
			return int64(othersWait), nil
		case ours:
			return int64(1), nil
		case reserved:
			return int64(othersTurn), nil
		default:
			return orZero(v, ok), nil
		}
	}
	if ours {
		s.del(lock, op)
	}
	_, served, denied := s.serve(lock, holders, line, atOnce, "", false, op)
	switch {
	case !ours && served:
		return int64(othersTurn), nil
	case !ours:
		return orZero(v, ok), nil
	case denied:
		return int64(publishDenied), nil
	case served:
		return int64(othersWait), nil
	default:
		return int64(1), nil
	}
}

func (s *memStore) mark(key string, argv []string, op *memOp) (any, error) {
	v, _, err := s.text(key)
	if err != nil {
		return nil, err
	}
	if v == argv[0] {
		at := argv[2]
		if at == "" {
			at = strconv.FormatInt(s.micros(), 10)
		}
		v = argv[1] + " " + at + " " + argv[3]
		s.set(key, v, 0, op)
	}
	return []any{v, s.micros()}, nil
}

// serves: the request may reserve the lock for others, who wait.
func (op *memOp) serves() bool {
	return op.req.queue != nil || op.req.script == forceScript || op.req.script == queueReleaseScript
}

// simEpoch is a time to begin at, in nanoseconds since 1970.
var simEpoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()
