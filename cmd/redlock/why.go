//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
)

// inShort says in a line why there is no lock, where the nodes are not what is wrong. The
// library names each node and what it found there.
func inShort(ctx context.Context, nodes *admin.Nodes, f runFlags, keys []string, err error) error {
	switch {
	case f.wait > 0 && errors.Is(err, redlock.ErrNoQuorum) && errors.Is(err, context.DeadlineExceeded):
		within := fmt.Sprintf("no quorum within %v", f.wait) // a shell has no context
		return &told{strings.Replace(err.Error(), "no quorum: context deadline exceeded", within, 1), err}
	case f.verbose || errors.Is(err, redlock.ErrNoQuorum):
		return err
	case errors.Is(err, redlock.ErrNotHeld) && f.adopt:
		return &told{fmt.Sprintf("not held: nobody has %s under the token in $%s", keys[0], adoptVariable), err}
	case !errors.Is(err, redlock.ErrHeld):
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, operatorPatience)
	defer cancel()
	text := ""
	for i, key := range keys {
		s, _ := nodes.Inspect(ctx, key) // what is known is in the status
		if by := holderIn(pictureOf(s, nodes.Quorum())); by != "" && s.Owner != f.owner {
			text = ": " + by
			keys = keys[i : i+1]
			break
		}
	}
	what := (&runLog{keys: keys}).name() + " is held by another"
	if len(keys) > 1 {
		what = "one of " + (&runLog{keys: keys}).name() + " is held by another"
	}
	if f.permits > 0 {
		what = "all permits of " + keys[0] + " are held by others"
	}
	if text == "" {
		what += ", or was a moment ago"
	}
	return &told{printable(what + text), err}
}

// holderIn is who holds the lock by now, and for how long; empty if nobody does.
func holderIn(p picture) string {
	lease := ", lease " + leaseOf(p.TTL.Round(time.Second))
	switch {
	case p.Shared:
		return sharers(holdersJSON(p.Holders)) + lease
	case p.Held() && p.Owner != "":
		return p.Owner + lease
	case p.Held():
		return "token " + shortToken(p.Token) + lease
	}
	for _, n := range p.Nodes {
		if n.Err != nil && !silent(n) { // there is something, and it is no lock
			return n.Err.Error()
		}
	}
	return ""
}
