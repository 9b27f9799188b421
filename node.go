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
	lane *lane
}

// kind is what a request asks of a node.
type kind uint8

const (
	acquire kind = iota + 1
	extend
	repair // put back a key that a node lost, after a successful extend
	release
	forceRelease
	inspect
)

func (k kind) String() string {
	return [...]string{"", "acquire", "extend", "repair", "release", "force release", "inspect"}[k]
}

// sets reports whether the request may create the lock's key.
func (k kind) sets() bool { return k == acquire || k == repair }

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
	// timeout is how long the caller waits for one node.
	timeout time.Duration
}

//go:embed scripts/*.lua
var scriptFiles embed.FS

// script is a Lua script, run by its digest once a server knows it.
type script struct{ source, digest string }

func mustScript(name string) *script {
	src, err := scriptFiles.ReadFile("scripts/" + name + ".lua")
	if err != nil {
		panic("bug: " + err.Error())
	}
	sum := sha1.Sum(src)
	return &script{source: string(src), digest: hex.EncodeToString(sum[:])}
}

var (
	releaseScript = mustScript("release")
	extendScript  = mustScript("extend")
	inspectScript = mustScript("inspect")
	forceScript   = mustScript("force")
)

// call builds the request that runs the script on one key.
func (s *script) request(k kind, t *terms, key string, args ...any) *request {
	return &request{
		kind: k, script: s, ttl: t.ttl, timeout: t.nodeTimeout,
		args: append([]any{"EVALSHA", s.digest, 1, key}, args...),
	}
}

// withSource is the same request with the script's text in place of its digest.
func (r *request) withSource() *request {
	c := *r
	c.whole = true
	c.args = append([]any{"EVAL", r.script.source}, r.args[2:]...)
	return &c
}

// setRequest is the command of the Redlock algorithm. PX and not PXAT: a client's
// clock must have no say in when a node's key expires.
func setRequest(k kind, t *terms, key, value string) *request {
	return &request{
		kind: k, ttl: t.ttl, timeout: t.nodeTimeout,
		args: []any{"SET", key, value, "NX", "PX", ttlOnNode(t.ttl)},
	}
}

func releaseRequest(t *terms, key, value string) *request {
	return releaseScript.request(release, t, key, value)
}

func extendRequest(t *terms, key, value string) *request {
	return extendScript.request(extend, t, key, value, ttlOnNode(t.ttl))
}

func inspectRequest(t *terms, key string) *request {
	return inspectScript.request(inspect, t, key)
}

func forceRequest(t *terms, key, token string) *request {
	return forceScript.request(forceRelease, t, key, token)
}

// reply is what came of one request on the wire.
type reply struct {
	val any   // of the server's answer; nil for a null answer
	err error // a server's error answer (redis.Error), or why there is no answer
	// sent is false when surely no byte of the request left. It says nothing where
	// the server answered.
	sent bool
}

// answered reports whether the server itself spoke.
func (r reply) answered() bool { return r.err == nil || isServerError(r.err) }

func isServerError(err error) bool {
	var e redis.Error
	return errors.As(err, &e)
}

// unknownScript reports whether the server wants the script's text.
func (r reply) unknownScript() bool {
	return r.err != nil && isServerError(r.err) && strings.HasPrefix(r.err.Error(), "NOSCRIPT")
}

// ballot is what is known of one node's answer to one request.
type ballot struct {
	vote   Vote // zero: nothing new
	holder string
	err    error
	val    any // the answer itself, where there was one
	// final: an answer of the node, or certainty that there will be none. Otherwise
	// the vote may still change.
	final bool
}

// read turns what came of a request into a vote.
func (r reply) read(k kind) ballot {
	b := r.vote(k)
	b.val, b.final = r.val, true
	return b
}

func (r reply) vote(k kind) ballot {
	switch {
	case r.err != nil && isServerError(r.err):
		if k != acquire && k != inspect && strings.Contains(r.err.Error(), "WRONGTYPE") {
			// A string is all that we ever put there.
			return ballot{vote: VoteRefused, err: r.err}
		}
		return ballot{vote: VoteFailed, err: r.err}
	case r.err != nil && !r.sent:
		return ballot{vote: VoteBarred, err: r.err}
	case r.err != nil:
		return ballot{vote: VoteUnknown, err: r.err}
	}
	switch v := r.val.(type) {
	case nil:
		if k.sets() {
			return ballot{vote: VoteRefused}
		}
	case string:
		switch {
		case k.sets() && v == "OK":
			return ballot{vote: VoteGranted}
		case k == extend || k == release || k == forceRelease:
			return ballot{vote: VoteRefused, holder: v}
		}
	case int64:
		switch {
		case k.sets() || k == inspect:
		case v == 1:
			return ballot{vote: VoteGranted}
		case v == 0:
			return ballot{vote: VoteRefused}
		}
	case []any:
		if k == inspect {
			return ballot{vote: VoteGranted}
		}
	}
	// Something that is no Redis answered. Whether it did anything is anyone's guess.
	return ballot{vote: VoteUnknown, err: fmt.Errorf("unexpected reply %.100q to %v", fmt.Sprint(r.val), k)}
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
		"WRONGTYPE",                                 // the key holds something else
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
