package redlock

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// node is one master: its name and the only way to it.
type node struct {
	name string
	hash uint64 // of the name, see weight
	lane *lane
}

// kind is what a request asks of a node.
type kind uint8

const (
	acquire kind = iota + 1
	acquireFenced
	extend
	repair // put back a key that a node lost, after a successful extend
	raise  // a fencing counter
	release
	forceRelease
	inspect
	join // the line of a lock
)

func (k kind) String() string {
	return [...]string{"", "acquire", "acquire", "extend", "repair", "raise", "release", "force release", "inspect", "join"}[k]
}

// sets reports whether the request may create the lock's key.
func (k kind) sets() bool { return k == acquire || k == acquireFenced || k == repair }

// request is one thing asked of nodes, the same bytes for each of them. It is
// immutable once made.
type request struct {
	kind kind
	// args is the command as it is sent first; a script goes by its digest.
	args   []any
	script *script // nil for a plain command
	whole  bool    // args carries the script's text
	// ttl is the longest that the key may live on the node because of this request,
	// or because of those that a release takes back.
	ttl time.Duration
	// leaves is how long the entry in a line that a release takes out lives, if longer.
	leaves time.Duration
	// timeout is how long the caller waits for one node.
	timeout time.Duration
}

//go:embed scripts/*.lua
var scriptFiles embed.FS

// script is a Lua script, run by its digest once a server knows it.
type script struct {
	source string
	digest any // a string, boxed once and not for each command
}

func mustScript(name string) *script {
	src := mustRead(name)
	for _, part := range []string{"line", "fence_counter"} {
		src = strings.Replace(src, "-- include "+part+".lua\n", mustRead(part), 1)
	}
	sum := sha1.Sum([]byte(src))
	return &script{source: src, digest: hex.EncodeToString(sum[:])}
}

func mustRead(name string) string {
	src, err := scriptFiles.ReadFile("scripts/" + name + ".lua")
	if err != nil {
		panic("bug: " + err.Error())
	}
	return string(src)
}

var (
	releaseScript = mustScript("release")
	extendScript  = mustScript("extend")
	inspectScript = mustScript("inspect")
	forceScript   = mustScript("force")

	joinScript        = mustScript("line_join")
	claimScript       = mustScript("line_claim")
	lineReleaseScript = mustScript("line_release")

	fenceScript       = mustScript("fence")
	raiseScript       = mustScript("fence_raise")
	fenceRepairScript = mustScript("fence_repair")
)

// key is the lock's key on the node, a string.
func (r *request) key() any {
	if r.script == nil {
		return r.args[1]
	}
	return r.args[3]
}

// The constructors write a request's arguments into the array that they are given, so
// that those of a lock can lie within it.

// setRequest is the command of the Redlock algorithm. PX and not PXAT: a client's
// clock must have no say in when a node's key expires.
func setRequest(k kind, t *terms, args *[6]any, key, value any) request {
	*args = [6]any{"SET", key, value, "NX", "PX", ttlOnNode(t.ttl)}
	return request{kind: k, ttl: t.ttl, timeout: t.nodeTimeout, args: args[:]}
}

// request runs the script on one key.
func (s *script) request(k kind, t *terms, args *[6]any, key, arg any) request {
	*args = [6]any{"EVALSHA", s.digest, 1, key, arg}
	return request{kind: k, script: s, ttl: t.ttl, timeout: t.nodeTimeout, args: args[:5]}
}

// withSource is the same request with the script's text in place of its digest.
func (r *request) withSource() *request {
	c := *r
	c.whole = true
	c.args = append([]any{"EVAL", r.script.source}, r.args[2:]...)
	return &c
}

func releaseRequest(t *terms, args *[6]any, key, value any) request {
	return releaseScript.request(release, t, args, key, value)
}

func extendRequest(t *terms, key, value any) *request {
	var args [6]any
	r := extendScript.request(extend, t, &args, key, value)
	args[5] = ttlOnNode(t.ttl)
	r.args = args[:]
	return &r
}

// inspectRequest asks for the lock, and for so many of those in the line unless that is
// empty.
func inspectRequest(t *terms, key, line any, most int) *request {
	var args [6]any
	r := inspectScript.request(inspect, t, &args, key, line)
	args[5] = most
	r.args = args[:]
	return &r
}

func forceRequest(t *terms, key, token, line any) *request {
	var args [6]any
	r := forceScript.request(forceRelease, t, &args, key, token)
	args[5] = line
	r.args = args[:]
	return &r
}

// lineReleaseRequest is releaseRequest for the node that keeps the line; entry is our
// own in it, or empty.
func lineReleaseRequest(t *terms, key, value, line, entry any, held bool) request {
	return request{
		kind: release, script: lineReleaseScript, ttl: t.ttl, timeout: t.nodeTimeout,
		args: []any{"EVALSHA", lineReleaseScript.digest, 1, key, value, line, entry, bit(held)},
	}
}

// plainLineReleaseRequest is lineReleaseRequest of a holder who did not wait, for a line
// with the usual name.
func plainLineReleaseRequest(t *terms, args *[6]any, key, value any) request {
	return lineReleaseScript.request(release, t, args, key, value)
}

// joinRequest joins the line or refreshes the place in it.
func joinRequest(t *terms, key, line any, entry, ended string, arrival int64, waited time.Duration) *request {
	return &request{
		kind: join, script: joinScript, ttl: t.ttl, timeout: t.nodeTimeout,
		args: []any{"EVALSHA", joinScript.digest, 2, key, line, entry, ended, arrival, waited.Microseconds(), lineLife.Milliseconds()},
	}
}

// claimRequest is setRequest for the node that keeps the line.
func claimRequest(t *terms, key, line, value, entry any) *request {
	return &request{
		kind: acquire, script: claimScript, ttl: t.ttl, timeout: t.nodeTimeout,
		args: []any{"EVALSHA", claimScript.digest, 2, key, line, value, ttlOnNode(t.ttl), entry},
	}
}

func bit(b bool) any {
	if b {
		return "1"
	}
	return "0"
}

// publishDenied: a release was done, but whoever waits could not be told.
const publishDenied = 2

// ballot is what is known of one node's answer to one request. The wire fills in val,
// err and sent; read makes a vote of them.
type ballot struct {
	val any   // of the server's answer; nil for a null answer
	err error // a server's error answer (redis.Error), or why there is no answer
	// sent is false when surely no byte of the request left. It says nothing where
	// the server answered.
	sent bool

	vote Vote // zero: nothing new
	// final: an answer of the node, or certainty that there will be none. Otherwise
	// the vote may still change.
	final bool
}

// answered reports whether the server itself spoke.
func (b ballot) answered() bool { return b.err == nil || isServerError(b.err) }

func isServerError(err error) bool {
	var e redis.Error
	return errors.As(err, &e)
}

// unknownScript reports whether the server wants the script's text.
func (b ballot) unknownScript() bool {
	return b.err != nil && isServerError(b.err) && strings.HasPrefix(b.err.Error(), "NOSCRIPT")
}

// read turns what came of a request into a vote.
func (b ballot) read(k kind) ballot {
	b.final = true
	switch {
	case b.err != nil && isServerError(b.err):
		b.vote = VoteFailed
		if !k.sets() && k != raise && k != inspect && k != join && strings.Contains(b.err.Error(), "WRONGTYPE") {
			// A string is all that we ever put there.
			b.vote = VoteRefused
		}
		return b
	case b.err != nil && !b.sent:
		b.vote = VoteBarred
		return b
	case b.err != nil:
		b.vote = VoteUnknown
		return b
	}
	switch v := b.val.(type) {
	case nil:
		if k.sets() {
			b.vote = VoteRefused
		}
	case string:
		switch {
		case (k == acquire || k == repair) && v == "OK":
			b.vote = VoteGranted
		case !k.sets() && k != inspect && k != join:
			b.vote = VoteRefused // it says who holds it
		}
	case int64:
		switch {
		case k == acquireFenced && v > 0:
			b.vote = VoteGranted
		case k.sets() || k == inspect || k == join:
		case v == 1, v == publishDenied && k == release:
			b.vote = VoteGranted
		case v == 0:
			b.vote = VoteRefused
		}
	case []any:
		if k == inspect || k == join {
			b.vote = VoteGranted
		}
	}
	if b.vote == 0 {
		// Something that is no Redis answered. Whether it did anything is anyone's guess.
		b.vote, b.err = VoteUnknown, fmt.Errorf("unexpected reply %.100q to %v", fmt.Sprint(b.val), k)
	}
	return b
}

// holder is the value that a script found instead of ours, or empty.
func (b ballot) holder() string {
	v, _ := b.val.(string)
	if b.vote != VoteRefused {
		return ""
	}
	return v
}

// incurable reports whether waiting cannot mend what a node answered: it is set up
// wrongly, or we are not allowed to use it.
func incurable(err error) bool {
	if err == nil || !isServerError(err) {
		return false
	}
	text := err.Error()
	for _, mark := range []string{
		"NOAUTH", "WRONGPASS", "NOPERM", "DENIED", "can't run this command", "ACL failure", // not allowed
		"WRONGTYPE", "BADFENCE", // the key, or its fencing counter, holds something else
		"MOVED", "ASK ", "CROSSSLOT", "CLUSTERDOWN", // a node of a cluster
		"unknown command", "ERR AUTH", "invalid DB index", "out of range", // no such server or database
	} {
		if strings.Contains(text, mark) {
			return true
		}
	}
	return false
}

// explained adds what to do to errors that people meet when they set up nodes.
func explained(err error) error {
	if err == nil || !isServerError(err) {
		return err
	}
	switch text := err.Error(); {
	case strings.HasPrefix(text, "MOVED"), strings.HasPrefix(text, "ASK "), strings.HasPrefix(text, "CLUSTERDOWN"):
		return fmt.Errorf("%w; this is a node of a Redis Cluster, and a quorum needs independent masters", err)
	case strings.HasPrefix(text, "READONLY"):
		return fmt.Errorf("%w; this is a replica, and a quorum needs independent masters", err)
	default:
		return err
	}
}
