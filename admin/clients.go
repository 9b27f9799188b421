package admin

import (
	"cmp"
	"context"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/quorumlock/redlock/internal/protocol"
)

// Client is a Redlock of some program, by the names of its connections to the nodes.
type Client struct {
	// ID tells clients apart. Owner is its Options.Owner, up to 64 bytes, with "_" for spaces
	// and for bytes beyond ASCII.
	ID, Owner string
	// Nodes are those of these nodes that it is connected to, and Of is how many it has.
	Nodes []string
	Of    int
	// List is the same for clients with the same addresses, in any order. Same: it has the addresses of
	// these nodes, or is connected to all of them and has no others.
	List string
	Same bool
	// OtherPrefix: its KeyPrefix is not Options.KeyPrefix, so it shares no lock with clients that have that.
	OtherPrefix bool
}

// Connected has the clients that the nodes know.
type Connected struct {
	// Clients are ordered by owner.
	Clients []Client
	// Nodes has one entry per node, in the order of Names. Err is why a node did not tell.
	Nodes []NodeError
}

// Clients asks all nodes at once which clients of this library are connected to them, by CLIENT LIST. A client
// of redlock.Open is from its first use to Close; one of New for a minute after it used a node. Not seen
// are clients whose user lacks CLIENT SETNAME, and those of New whose redis.Options have a ClientName.
//
// It fails with ErrNoQuorum if fewer than a majority of nodes told within Options.Timeout, with what was
// learned, and with ctx's error.
func (n *Nodes) Clients(ctx context.Context) (Connected, error) {
	asking, cancel := context.WithTimeout(ctx, n.opts.Timeout)
	defer cancel()
	told := make([][]connection, len(n.clients))
	c := Connected{Nodes: make([]NodeError, len(n.clients))}
	var group errgroup.Group
	for i, client := range n.clients {
		group.Go(func() error {
			start := n.clock.Now()
			var err error
			told[i], err = within(asking, func() ([]connection, error) { return n.connections(asking, client) })
			c.Nodes[i] = NodeError{n.names[i], protocol.Hinted(client, err), n.clock.Now().Since(start)}
			return nil
		})
	}
	_ = group.Wait()
	c.Clients = n.clientsOf(told)
	failed := &Error{Op: "clients", Nodes: c.Nodes, Reason: n.ended(ctx)}
	silent := 0
	for _, node := range c.Nodes {
		if node.Err != nil {
			silent++
		}
	}
	switch {
	case failed.Reason != nil:
	case len(n.clients)-silent < n.Quorum():
		failed.Reason = ErrNoQuorum
	default:
		return c, nil
	}
	return c, failed
}

// clientsOf puts together what each node told.
func (n *Nodes) clientsOf(told [][]connection) (all []Client) {
	own := protocol.NewClientName(n.clients, n.opts.KeyPrefix, "")
	at := make(map[string]int)
	for i, connections := range told {
		for _, c := range connections {
			if _, known := at[c.ID]; !known {
				at[c.ID] = len(all)
				all = append(all, Client{
					ID: c.ID, Owner: c.Owner, Of: c.Nodes, List: c.List, Same: c.Nodes == own.Nodes && c.List == own.List, OtherPrefix: c.Scope != own.Scope,
				})
			}
			of := &all[at[c.ID]]
			if !slices.Contains(of.Nodes, n.names[i]) {
				of.Nodes = append(of.Nodes, n.names[i])
			}
			of.Same = of.Same || len(of.Nodes) == own.Nodes && of.Of == own.Nodes
		}
	}
	slices.SortFunc(all, func(a, b Client) int { return cmp.Or(cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.ID, b.ID)) })
	return all
}
