package fakenode

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/quorumlock/redlock/internal/protocol"
)

// The scripts of locks that several hold, in Go; see Store.

const (
	Marker  = protocol.SharedMarker
	Numbers = 2048
)

// purge leaves those whose lease is not over, or nobody without the marker.
func (s *Store) purge(marked bool, holders string, now int64, op *Op) error {
	set, err := s.zset(holders)
	if err != nil || len(set) == 0 {
		return err
	}
	if !marked {
		least := math.Inf(1)
		for _, score := range set {
			least = min(least, score)
		}
		if least < 1<<51 || least > 1<<53 {
			return Error("WRONGTYPE a sorted set of others: " + holders)
		}
		s.Del(holders, op)
		return nil
	}
	for m, score := range set {
		if int64(score) < now*Numbers {
			s.zrem(holders, m)
		}
	}
	return nil
}

// settle lets the lock's key last as long as the longest lease.
func (s *Store) settle(lock, holders string, now int64, op *Op) {
	last, ok := s.last(holders)
	if !ok {
		s.Del(lock, op)
		return
	}
	left := max(int64(last)/Numbers-now, 1)
	s.Set(lock, Marker, left, op)
	s.ExpireIn(holders, left, op)
}

// free is the first number that nobody has here.
func (s *Store) free(holders, value string, limit int64) (number int64, ok bool) {
	taken, listed := make(map[int64]bool), int64(0)
	if k := s.Get(holders); k != nil {
		for _, score := range k.Zset {
			taken[int64(score)%Numbers] = true
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

func (s *Store) hold(lock, holders, value string, number, till, now int64, op *Op) {
	s.Zadd(holders, float64(till*Numbers+number), value)
	s.Watch.Listed(lock, value, number, till, op)
	s.settle(lock, holders, now, op)
}

// struck takes one off the list.
func (s *Store) strike(lock, holders, value string, op *Op) bool {
	if s.zrem(holders, value) == 0 {
		return false
	}
	s.Watch.Struck(lock, value, op)
	return true
}

// Have is the entry of one who shares the lock.
func (s *Store) Have(holders, value string) (till, number int64, ok bool) {
	k := s.Get(holders)
	if k == nil {
		return 0, 0, false
	}
	score, ok := k.Zset[value]
	return int64(score) / Numbers, int64(score) % Numbers, ok
}

// list is that of shared.lua: settle is to follow.
func (s *Store) list(lock, holders, value string, ttl, limit, now int64, op *Op) (number int64, ok bool) {
	till := now + ttl
	if end, n, have := s.Have(holders, value); have {
		till, number = max(till, end), n
	} else if limit != 0 {
		if number, ok = s.free(holders, value, limit); !ok {
			return 0, false
		}
	}
	s.Zadd(holders, float64(till*Numbers+number), value)
	s.Watch.Listed(lock, value, number, till, op)
	return number, true
}

func (s *Store) sharedClaim(keys, argv []string, op *Op) (any, error) {
	if len(keys) == 3 {
		return s.listClaim(keys, argv, op)
	}
	lock, holders, line := keys[0], keys[1], keys[3]
	if err := s.leave(line, argv[3]); err != nil {
		return nil, err
	}
	number, err := s.listClaim(keys, argv, op)
	if err == nil && s.Typ(line) == "zset" {
		_, _, denied, _ := s.serve(lock, holders, line, 2, "", false, op)
		if n, granted := number.(int64); granted && denied {
			return n + protocol.Unheard, nil
		}
	}
	return number, err
}

// listClaim is claim of shared_claim.lua.
func (s *Store) listClaim(keys, argv []string, op *Op) (any, error) {
	lock, holders := keys[0], keys[1]
	v, held, err := s.Text(lock)
	if err != nil {
		return nil, err
	}
	if held && v != Marker {
		return nil, nil
	}
	now := s.Millis()
	if err := s.purge(held, holders, now, op); err != nil {
		return nil, err
	}
	if _, _, listed := s.Have(holders, argv[0]); len(argv) < 4 && s.Get(keys[2]) != nil && !listed {
		return nil, s.foreignDoor(keys[2])
	}
	n, granted := s.list(lock, holders, argv[0], Number(argv[1]), Number(argv[2]), now, op)
	if !granted {
		return nil, nil
	}
	s.settle(lock, holders, now, op)
	return n + 1, nil
}

func (s *Store) sharedExtend(keys, argv []string, op *Op) (any, error) {
	lock, holders, value := keys[0], keys[1], argv[0]
	ttl, want := Number(argv[1]), Number(argv[2])
	v, held, err := s.Text(lock)
	if err != nil {
		return nil, err
	}
	now := s.Millis()
	if !held || v != Marker {
		return orZero(v, held), nil
	}
	if err := s.purge(true, holders, now, op); err != nil {
		return nil, err
	}
	end, have, ok := s.Have(holders, value)
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

func (s *Store) sharedRelease(keys, argv []string, op *Op) (any, error) {
	lock, holders, value, line, entry, role := keys[0], keys[1], argv[0], argv[1], argv[2], argv[3]
	v, held, err := s.Text(lock)
	if err != nil {
		return nil, err
	}
	ours := false
	switch {
	case held && v == value:
		s.Del(lock, op)
		_ = s.purge(false, holders, s.Millis(), op)
		ours = true
	case held && v == Marker:
		now := s.Millis()
		if err := s.purge(true, holders, now, op); err != nil {
			return nil, err
		}
		ours = s.strike(lock, holders, value, op)
		s.settle(lock, holders, now, op)
	}
	if line != "" && s.Typ(line) == "zset" {
		if entry != "" {
			_ = s.leave(line, entry)
		}
		return s.passOn(lock, holders, line, ours, role, op), nil
	}
	if ours {
		return int64(1), nil
	}
	v, held, _ = s.Text(lock)
	return orZero(v, held), nil
}

// forceShared is the part of force for a lock that several hold.
func (s *Store) forceShared(lock, holders, token string, op *Op) (int64, error) {
	now := s.Millis()
	if err := s.purge(true, holders, now, op); err != nil {
		return 0, err
	}
	deleted := int64(0)
	if k := s.Get(holders); k != nil {
		for _, m := range slices.Sorted(maps.Keys(k.Zset)) {
			if m == token || strings.HasPrefix(m, token+"@") {
				deleted += Truth(s.strike(lock, holders, m, op))
			}
		}
	}
	s.settle(lock, holders, now, op)
	return deleted, nil
}

// sharers is what inspect tells of those who share a lock.
func (s *Store) sharers(holders string, most int64) []any {
	list := []any{}
	k := s.Get(holders)
	if k == nil {
		return list
	}
	now := s.Millis()
	members := slices.Sorted(maps.Keys(k.Zset))
	slices.SortStableFunc(members, func(a, b string) int { return int(math.Copysign(1, k.Zset[a]-k.Zset[b])) })
	for _, m := range members {
		if score := int64(k.Zset[m]); score >= now*Numbers && len(list) < int(3*most) {
			list = append(list, m, score/Numbers-now, score%Numbers)
		}
	}
	return list
}
