package linear

import (
	"slices"

	"github.com/quorumlock/redlock/internal/testing/history"
)

// held is the state of a lock: those who hold it, none if it is free; fence is the last one given. It is never changed, only replaced.
type held struct {
	holders []holder // in the order of their tokens, so that equal states look alike
	fence   uint64
	left    string // the token of the last holder, which has ended by its lease or was detached: a client that adopts it may still go on
}

// holder is one who holds a lock until an instant at least.
type holder struct {
	token  string
	until  int64
	mode   string
	permit int
	of     int // how many permits it believes that there are
}

func (s held) equal(o held) bool {
	return s.fence == o.fence && s.left == o.left && slices.Equal(s.holders, o.holders)
}

func (s held) find(token string) (holder, bool) {
	for _, h := range s.holders {
		if h.token == token {
			return h, true
		}
	}
	return holder{}, false
}

// with is the state with this holder besides the others, or in place of what it was.
func (s held) with(h holder) held {
	s = s.without(h.token)
	at, _ := slices.BinarySearchFunc(s.holders, h, func(a, b holder) int {
		switch {
		case a.token < b.token:
			return -1
		case a.token > b.token:
			return 1
		default:
			return 0
		}
	})
	s.holders = slices.Insert(slices.Clone(s.holders), at, h)
	return s
}

func (s held) without(token string) held {
	s.holders = slices.DeleteFunc(slices.Clone(s.holders), func(h holder) bool { return h.token == token })
	return s
}

// admits reports whether this one may hold the lock besides the others: nobody beside one who has it alone, no number twice, and no more permits than
// the greatest number of permits that a holder believes in.
func (s held) admits(h holder) bool {
	permits, most := 0, h.of
	for _, o := range s.holders {
		switch {
		case o.mode == history.Alone || h.mode == history.Alone:
			return false
		case o.mode == history.Permit:
			permits, most = permits+1, max(most, o.of)
			if h.mode == history.Permit && o.permit == h.permit {
				return false
			}
		}
	}
	return h.mode != history.Permit || permits < most
}

// next is the lock: whether it may answer so in this state, and the state after it.
func next(s held, op *step) (bool, held) {
	own, owner := s.find(op.Token)
	switch op.Kind {
	case history.Acquire:
		return acquire(s, op.Op)
	case history.Extend:
		if !owner {
			return false, s
		}
		own.until = max(own.until, op.Until)
		return true, s.with(own)
	case history.Detach:
		if !owner {
			return false, s
		}
		s = s.without(op.Token)
		s.left = op.Token
		return true, s
	case history.Release:
		if owner {
			s = s.without(op.Token)
			s.left = ""
			return true, s
		}
		// Nil from a release that ends after the lease may be true: the nodes still had it, and another got the lock in the meantime. Any other
		// answer claims nothing.
		return op.Outcome != history.OK || op.Return > op.last, s
	default: // expire
		if owner && own.until == op.Until {
			s = s.without(op.Token)
			s.left = op.Token
		}
		return true, s
	}
}

func acquire(s held, op history.Op) (bool, held) {
	before := s
	if op.From != "" {
		// A lock that another goes on with: its holder has it still, or was the last one.
		if _, there := s.find(op.From); !there && s.left != op.From {
			return false, before
		}
		s = s.without(op.From)
	}
	h := holder{op.Token, op.Until, op.Mode, op.Permit, op.Permits}
	if !s.admits(h) || op.Fence > 0 && op.Fence <= s.fence {
		return false, before
	}
	s = s.with(h)
	s.fence, s.left = max(op.Fence, s.fence), ""
	return true, s
}
