package main

import (
	"cmp"
	"fmt"
	"io"
	"strconv"

	"github.com/quorumlock/redlock/admin"
)

// sharedMarker is what the nodes have under the key of a lock that several hold together.
const sharedMarker = "redlock:shared"

// holderJSON is one who holds a lock together with others.
type holderJSON struct {
	Token  string  `json:"token"`
	Owner  string  `json:"owner,omitempty"`
	Permit *int    `json:"permit,omitempty"` // of a semaphore
	TTL    float64 `json:"ttl_seconds"`
}

func holdersJSON(all []admin.Holder) (list []holderJSON) {
	for _, h := range all {
		j := holderJSON{Token: h.Token, Owner: h.Owner, TTL: inSeconds(h.TTL)}
		if h.Permit >= 0 {
			j.Permit = new(h.Permit)
		}
		list = append(list, j)
	}
	return list
}

// sharedBy counts holders, in words. There may be none: the mark is there, and no majority
// lists the same holder, or nobody was asked.
func sharedBy(n int) string {
	if n == 0 {
		return "shared"
	}
	return fmt.Sprintf("shared by %d", n)
}

// sharers names the first of those who hold a lock together, and counts the others. How they share it
// comes first, where a narrow table cuts nothing off.
func sharers(all []holderJSON) string {
	if len(all) == 0 {
		return sharedBy(0)
	}
	text := cut(cmp.Or(all[0].Owner, shortToken(all[0].Token)), 40)
	if n := len(all) - 1; n > 0 {
		text += fmt.Sprintf(" +%d", n)
	}
	switch permit := all[0].Permit; {
	case permit == nil:
		return "shared: " + text
	case len(all) == 1:
		return fmt.Sprintf("permit %d: %s", *permit, text)
	default:
		return fmt.Sprintf("%d permits: %s", len(all), text)
	}
}

// heldText is what a key holds on one node, in a table.
func heldText(n admin.NodeStatus) string {
	switch n.Value {
	case "":
		return "-"
	case sharedMarker:
		return sharedBy(len(n.Holders))
	default:
		return shortHolder(n.Value)
	}
}

// printHolders lists those who share a lock, with the tokens by which an operator may strike
// one of them. These are last, where a narrow terminal cuts nothing off.
func printHolders(w io.Writer, p palette, all []admin.Holder) {
	if len(all) == 0 {
		return
	}
	t := table{heading: []string{"PERMIT", "HOLDER", "LEASE", "TOKEN"}}
	for _, h := range all {
		permit := "-"
		if h.Permit >= 0 {
			permit = strconv.Itoa(h.Permit)
		}
		t.rows = append(t.rows, []string{permit, cut(h.Owner, 40), leaseOf(h.TTL), h.Token})
	}
	t.print(w, p)
}
