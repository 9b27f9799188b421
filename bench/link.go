package main

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/quorumlock/redlock/internal/testing/faultproxy"
	"github.com/spf13/cobra"
)

// links are delaying proxies in front of servers, in a process of their own so that
// their work is not taken for a candidate's.
type links struct {
	child *child
	addrs []string
}

// linkOrder sets the delay of the first so many links.
type linkOrder struct {
	Nodes int
	Delay time.Duration // of a round trip
}

func startLinks(ctx context.Context, upstream []string) (*links, error) {
	c, err := startChild(ctx, "link", upstream)
	if err != nil {
		return nil, err
	}
	k := &links{child: c}
	if err := c.hear(10*time.Second, &k.addrs); err != nil {
		c.close()
		return nil, err
	}
	return k, nil
}

func (k *links) delay(nodes int, d time.Duration) error {
	if err := k.child.tell(linkOrder{nodes, d}); err != nil {
		return err
	}
	var done bool
	return k.child.hear(10*time.Second, &done)
}

func (k *links) close() { k.child.close() }

func linkCommand() *cobra.Command {
	return &cobra.Command{
		Use: "link", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return serveLinks(newOrders(cmd.InOrStdin(), cmd.OutOrStdout()))
		},
	}
}

func serveLinks(o orders) error {
	var upstream, addrs []string
	if err := o.next(&upstream); err != nil {
		return err
	}
	defer preciseTimers()()
	var proxies []*faultproxy.Proxy
	for _, addr := range upstream {
		p := faultproxy.New(func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		})
		defer p.Close()
		p.Record(false)
		a, err := p.Listen()
		if err != nil {
			return err
		}
		proxies, addrs = append(proxies, p), append(addrs, a)
	}
	if err := o.answer(addrs); err != nil {
		return err
	}
	for {
		var order linkOrder
		if err := o.next(&order); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		for _, p := range proxies[:order.Nodes] {
			p.Delay(order.Delay/2, order.Delay/2)
		}
		if err := o.answer(true); err != nil {
			return err
		}
	}
}
