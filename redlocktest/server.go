package redlocktest

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
)

const (
	databases   = 16 // as in Redis' default configuration
	usualUptime = time.Hour
)

// replica returns the database in which a detached replica keeps its copy of
// database i: out of clients' sight, but expiring and following the node's clock
// as everything in the same miniredis does.
func replica(i int) int { return 1<<20 + i }

// boot starts the server process. The caller holds process, or is alone.
func (n *Node) boot(uptime time.Duration) {
	n.mu.Lock()
	closed := n.closed
	n.mu.Unlock()
	if closed {
		return
	}
	// What Close has cancelled is never made anew, and blocking commands would
	// return at once.
	n.redis.Lock()
	n.redis.Ctx, n.redis.CtxCancel = context.WithCancel(context.Background())
	n.redis.Unlock()
	conn, err := n.redis.Dial() // starts a server without a listener
	if err != nil {
		panic("redlocktest: " + err.Error()) // no reason is known
	}
	conn.Close()
	srv := n.redis.Server()
	srv.SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
		return n.intercept(srv, c, cmd, args)
	})
	n.admin.attach(srv)
	n.admin.do("SCRIPT", "FLUSH")

	n.mu.Lock()
	n.stopped = false
	n.runID, n.replID = newRunID(), newRunID()
	n.born, n.evicted = n.clock().Add(-uptime), 0
	n.mu.Unlock()
	n.relink()
}

// clock returns the node's time of day. The caller holds mu.
func (n *Node) clock() time.Time { return time.Now().Add(n.offset) }

func newRunID() string {
	var id [20]byte
	rand.Read(id[:])
	return hex.EncodeToString(id[:])
}

func (n *Node) setDenied(commands []string, denied bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range commands {
		n.denied[strings.ToUpper(c)] = denied
	}
}

// intercept answers what miniredis does not know, or not in our way, and reports
// whether it did. It is called for commands of clients and of scripts alike; with
// the latter miniredis is locked, so nothing here may lock it.
func (n *Node) intercept(srv *server.Server, c *server.Peer, cmd string, args []string) bool {
	if n.admin.is(c) {
		return false
	}
	n.mu.Lock()
	failure, denied, detached := n.failure, n.denied[cmd], n.detached
	offset, now := n.offset, n.clock()
	n.mu.Unlock()

	switch {
	case failure != "" && !handshake[cmd]:
		c.WriteError(failure)
	case denied:
		c.WriteError(fmt.Sprintf("NOPERM this user has no permissions to run the '%s' command", strings.ToLower(cmd)))
	case cmd == "INFO":
		// By way of ECHO it takes part in authentication and transactions.
		srv.Dispatch(c, []string{"ECHO", n.info(srv, args)})
	case cmd == "FLUSHALL" && detached:
		srv.Dispatch(c, append([]string{"FLUSHDB"}, args...)) // leaves the replica alone
	case offset == 0:
		return false
	case cmd == "TIME" && len(args) == 0:
		c.Block(func(w *server.Writer) {
			w.WriteStrings([]string{
				strconv.FormatInt(now.Unix(), 10),
				strconv.Itoa(now.Nanosecond() / 1000),
			})
		})
	default:
		relative, ok := untilExpiry(cmd, args, now)
		if ok {
			srv.Dispatch(c, relative)
		}
		return ok
	}
	return true
}

// handshake is what connections begin with.
var handshake = map[string]bool{"HELLO": true, "AUTH": true, "CLIENT": true, "SELECT": true}

// info renders the sections of INFO that there are.
func (n *Node) info(srv *server.Server, args []string) string {
	n.mu.Lock()
	runID, replID, now, born, evicted := n.runID, n.replID, n.clock(), n.born, n.evicted
	n.mu.Unlock()
	wanted := func(section string) bool {
		if len(args) == 0 {
			return true
		}
		for _, a := range args {
			switch strings.ToLower(a) {
			case section, "default", "all", "everything":
				return true
			}
		}
		return false
	}
	var sections []string
	if wanted("server") {
		// Redis subtracts whole seconds, which is why it runs up to one second ahead.
		uptime := now.Unix() - born.Unix()
		sections = append(sections, fmt.Sprintf("# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n"+
			"run_id:%s\r\nuptime_in_seconds:%d\r\nuptime_in_days:%d\r\n", runID, uptime, uptime/86400))
	}
	if wanted("clients") {
		sections = append(sections, fmt.Sprintf("# Clients\r\nconnected_clients:%d\r\n", srv.ClientsLen()))
	}
	if wanted("replication") {
		sections = append(sections, fmt.Sprintf("# Replication\r\nrole:master\r\nconnected_slaves:0\r\nmaster_replid:%s\r\n", replID))
	}
	if wanted("stats") {
		sections = append(sections, fmt.Sprintf("# Stats\r\ntotal_connections_received:%d\r\ntotal_commands_processed:%d\r\nevicted_keys:%d\r\n",
			srv.TotalConnections(), srv.TotalCommands(), evicted))
	}
	return strings.Join(sections, "\r\n")
}

// untilExpiry rewrites a command with an absolute expiry into one with a relative
// expiry, by the clock that now was taken from: miniredis' own clock does not jump.
func untilExpiry(cmd string, args []string, now time.Time) ([]string, bool) {
	left := func(at string, unit time.Duration) (string, bool) {
		v, err := strconv.ParseInt(at, 10, 64)
		if err != nil {
			return "", false // let miniredis complain
		}
		if unit == time.Second {
			v *= 1000
		}
		return strconv.FormatInt(v-now.UnixMilli(), 10), true
	}
	out := append([]string{cmd}, args...)
	switch cmd {
	case "EXPIREAT", "PEXPIREAT":
		if len(args) < 2 {
			return nil, false
		}
		unit := time.Second
		if cmd == "PEXPIREAT" {
			unit = time.Millisecond
		}
		ms, ok := left(args[1], unit)
		out[0], out[2] = "PEXPIRE", ms
		return out, ok
	case "SET", "GETEX":
		first := 2
		if cmd == "SET" {
			first = 3
		}
		for i := first; i+1 < len(out); i++ {
			unit := time.Millisecond
			switch strings.ToUpper(out[i]) {
			case "EXAT":
				unit = time.Second
			case "PXAT":
			default:
				continue
			}
			ms, ok := left(out[i+1], unit)
			out[i], out[i+1] = "PX", ms
			return out, ok
		}
	}
	return nil, false
}

// admin sends commands to a node's server from inside.
type admin struct {
	peer *server.Peer
	srv  *server.Server
}

func newAdmin() *admin {
	return &admin{peer: server.NewPeer(bufio.NewWriter(io.Discard))}
}

func (a *admin) is(c *server.Peer) bool    { return c == a.peer }
func (a *admin) attach(srv *server.Server) { a.srv = srv }
func (a *admin) do(words ...string)        { a.srv.Dispatch(a.peer, words) }

// login makes a good for all times, before any password is set.
func (a *admin) login(m *miniredis.Miniredis) {
	m.RequireAuth("admin")
	a.do("AUTH", "admin")
	m.RequireAuth("")
}

// copyDB copies keys in one step.
func (a *admin) copyDB(from, to int, keys []string) {
	if len(keys) == 0 {
		return
	}
	a.do("SELECT", strconv.Itoa(from))
	a.do("MULTI")
	for _, k := range keys {
		a.do("COPY", k, k, "DB", strconv.Itoa(to), "REPLACE")
	}
	a.do("EXEC")
}
