package redlock

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// The scripts of locks that several hold, in Go; see memStore.

const (
	marker  = sharedMarker
	numbers = 2048
)

func (s *memStore) marked(lock string) bool {
	v, ok, _ := s.text(lock)
	return ok && v == marker
}

// purge leaves those whose lease is not over.
func (s *memStore) purge(lock, holders string, now int64, op *memOp) {
	if !s.marked(lock) {
		s.del(holders, op)
		return
	}
	if k := s.get(holders); k != nil {
		for m, score := range k.zset {
			if int64(score) < now*numbers {
				s.zrem(holders, m)
			}
		}
	}
}

// settle lets the lock's key last as long as the longest lease.
func (s *memStore) settle(lock, holders string, now int64, op *memOp) {
	last, ok := s.last(holders)
	if !ok {
		s.del(lock, op)
		s.del(holders, op)
		return
	}
	left := max(int64(last)/numbers-now, 1)
	s.set(lock, marker, left, op)
	s.expireIn(holders, left, op)
}

// free is the first number that nobody has here.
func (s *memStore) free(holders, value string, limit int64) (number int64, ok bool) {
	taken, listed := make(map[int64]bool), int64(0)
	if k := s.get(holders); k != nil {
		for _, score := range k.zset {
			taken[int64(score)%numbers] = true
			listed++
		}
	}
	if limit < 0 {
		return -limit, !taken[-limit]
	}
	if listed >= limit {
		return 0, false
	}
	from, _ := strconv.ParseInt(value[:min(8, len(value))], 16, 64)
	for i := range limit {
		if number := (from+i)%limit + 1; !taken[number] {
			return number, true
		}
	}
	return 0, false
}

func (s *memStore) hold(lock, holders, value string, number, till, now int64, op *memOp) {
	s.zadd(holders, float64(till*numbers+number), value)
	s.watch.listed(lock, value, number, till, op)
	s.settle(lock, holders, now, op)
}

// struck takes one off the list.
func (s *memStore) strike(lock, holders, value string, op *memOp) bool {
	if s.zrem(holders, value) == 0 {
		return false
	}
	s.watch.struck(lock, value, op)
	return true
}

// have is the entry of one who shares the lock.
func (s *memStore) have(holders, value string) (till, number int64, ok bool) {
	k := s.get(holders)
	if k == nil {
		return 0, 0, false
	}
	score, ok := k.zset[value]
	return int64(score) / numbers, int64(score) % numbers, ok
}

func (s *memStore) share(lock, holders, value string, ttl, limit, now int64, op *memOp) (number int64, ok bool) {
	till := now + ttl
	if end, n, have := s.have(holders, value); have {
		till, number = max(till, end), n
	} else if limit != 0 {
		if number, ok = s.free(holders, value, limit); !ok {
			return 0, false
		}
	}
	s.hold(lock, holders, value, number, till, now, op)
	return number, true
}

func (s *memStore) sharedClaim(keys, argv []string, op *memOp) (any, error) {
	lock, holders := keys[0], keys[1]
	v, held, err := s.text(lock)
	if err != nil {
		return nil, err
	}
	if held && v != marker {
		return nil, nil
	}
	now := s.millis()
	s.purge(lock, holders, now, op)
	if _, _, listed := s.have(holders, argv[0]); s.get(keys[2]) != nil && !listed {
		return nil, nil
	}
	number, ok := s.share(lock, holders, argv[0], number(argv[1]), number(argv[2]), now, op)
	if !ok {
		return nil, nil
	}
	return number + 1, nil
}

func (s *memStore) sharedExtend(keys, argv []string, op *memOp) (any, error) {
	lock, holders, value := keys[0], keys[1], argv[0]
	ttl, want := number(argv[1]), number(argv[2])
	v, held, err := s.text(lock)
	if err != nil {
		return nil, err
	}
	now := s.millis()
	if held && v == value {
		till := now + max(ttl, s.pttl(lock))
		s.del(holders, op)
		s.hold(lock, holders, value, want, till, now, op)
		return int64(1), nil
	}
	if !held || v != marker {
		return orZero(v, held), nil
	}
	s.purge(lock, holders, now, op)
	end, have, ok := s.have(holders, value)
	if !ok {
		s.settle(lock, holders, now, op)
		return int64(0), nil
	}
	till := max(now+ttl, end)
	if have == want {
		s.hold(lock, holders, value, want, till, now, op)
		return int64(1), nil
	}
	s.strike(lock, holders, value, op)
	if _, ok := s.free(holders, value, -want); ok {
		s.hold(lock, holders, value, want, till, now, op)
	} else {
		s.settle(lock, holders, now, op)
	}
	return int64(0), nil
}

func (s *memStore) sharedRelease(keys, argv []string, op *memOp) (any, error) {
	lock, holders, value, line, entry, role := keys[0], keys[1], argv[0], argv[1], argv[2], argv[3]
	v, held, err := s.text(lock)
	if err != nil {
		return nil, err
	}
	ours, waits, reserved := false, false, false
	switch {
	case held && v == value:
		s.del(lock, op)
		s.del(holders, op)
		ours = true
	case held && v == marker:
		now := s.millis()
		s.purge(lock, holders, now, op)
		ours = s.strike(lock, holders, value, op)
		s.settle(lock, holders, now, op)
	}
	if line != "" && s.typ(line) == "zset" {
		if entry != "" {
			process, _, _ := entryParts(entry)
			s.zrem(line, entry, "woken "+entry, "silent "+process)
		}
		waiting := s.waiting(line)
		waits = len(waiting) > 0
		v, held, _ := s.text(lock)
		if !held && role != "2" {
			_, reserved = s.serve(lock, line, "", op)
		} else if waits && role != "0" {
			process, _, value := entryParts(waiting[0])
			reserved = held && value == v
			if reserved || !held {
				s.publish("redlock:"+process, value)
			}
		}
	}
	switch {
	case ours && waits:
		return int64(othersWait), nil
	case ours:
		return int64(1), nil
	case reserved:
		return int64(othersTurn), nil
	}
	v, held, _ = s.text(lock)
	return orZero(v, held), nil
}

// forceShared is the part of force for a lock that several hold.
func (s *memStore) forceShared(lock, holders, token string, op *memOp) int64 {
	now := s.millis()
	s.purge(lock, holders, now, op)
	deleted := int64(0)
	if k := s.get(holders); k != nil {
		for _, m := range sortedKeys(k.zset) {
			if m == token || strings.HasPrefix(m, token+"@") {
				deleted += truth(s.strike(lock, holders, m, op))
			}
		}
	}
	s.settle(lock, holders, now, op)
	return deleted
}

// sharers is what inspect tells of those who share a lock.
func (s *memStore) sharers(holders string, most int64) []any {
	list := []any{}
	k := s.get(holders)
	if k == nil {
		return list
	}
	now := s.millis()
	members := sortedKeys(k.zset)
	slices.SortStableFunc(members, func(a, b string) int { return int(math.Copysign(1, k.zset[a]-k.zset[b])) })
	for _, m := range members {
		if score := int64(k.zset[m]); score >= now*numbers && len(list) < int(3*most) {
			list = append(list, m, score/numbers-now, score%numbers)
		}
	}
	return list
}
