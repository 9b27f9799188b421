package redlocktest

import (
	"strconv"
	"strings"

	"github.com/alicebob/miniredis/v2/server"
)

// peers are a node's connections by their CLIENT ID, which miniredis does not know.
type peers struct {
	last   int64
	ids    map[*server.Peer]int64
	killed map[*server.Peer]bool
}

// ofClient answers CLIENT ID and CLIENT KILL ID, and reports whether the command was one
// of them.
func (n *Node) ofClient(c *server.Peer, args []string) bool {
	switch {
	case len(args) == 1 && strings.EqualFold(args[0], "ID"):
		id := n.idOf(c)
		c.Block(func(w *server.Writer) { w.WriteInt(int(id)) })
	case len(args) == 3 && strings.EqualFold(args[0], "KILL") && strings.EqualFold(args[1], "ID"):
		id, err := strconv.ParseInt(args[2], 10, 64)
		if err != nil {
			c.WriteError("ERR client-id should be greater than 0")
			return true
		}
		killed := n.kill(id)
		c.Block(func(w *server.Writer) { w.WriteInt(killed) })
	default:
		return false
	}
	return true
}

func (n *Node) idOf(c *server.Peer) int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	if id := n.peers.ids[c]; id != 0 {
		return id
	}
	if n.peers.ids == nil {
		n.peers.ids, n.peers.killed = make(map[*server.Peer]int64), make(map[*server.Peer]bool)
	}
	n.peers.last++
	n.peers.ids[c] = n.peers.last
	c.OnDisconnect(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.peers.ids, c)
		delete(n.peers.killed, c)
	})
	return n.peers.last
}

// kill ends a connection: what it has sent and was not executed yet never will be.
func (n *Node) kill(id int64) (killed int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c, i := range n.peers.ids {
		if i == id {
			n.peers.killed[c] = true
			c.Close()
			return 1
		}
	}
	return 0
}
