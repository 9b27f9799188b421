package main

import (
	"bufio"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/admin"
)

// startHostile answers whatever it is asked with the beginning of a reply.
func startHostile(t *testing.T, head string) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var all sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); all.Wait() })
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				in := bufio.NewReader(c)
				for {
					if _, err := in.ReadString('\n'); err != nil {
						return
					}
					_ = c.SetWriteDeadline(time.Now().Add(time.Second))
					if _, err := c.Write([]byte(head)); err != nil {
						return
					}
				}
			})
		}
	})
	return l.Addr().String()
}

// What a server announces takes no memory, whichever of the command's own connections hears it.
func TestHostileServers(t *testing.T) {
	for _, head := range []string{"$536870912\r\n", "*5368709\r\n", "%268435456\r\n"} {
		var addrs []string
		for range 3 {
			addrs = append(addrs, startHostile(t, head))
		}
		all := "--addrs=" + addrs[0] + "," + addrs[1] + "," + addrs[2]
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for _, args := range [][]string{{"check", all}, {"status", "k", all}, {"list", all}, {"release", "k", "--force", all}} {
			r := run(t, t.Context(), args...)
			assert.Equal(t, exitFailed, r.code, "%v: %s%s", args, r.out, r.errOut)
			assert.Contains(t, r.out+r.errOut, "announced or sent more than any answer", args)
		}
		nodes, err := admin.Open(addrs, nil)
		require.NoError(t, err)
		_, err = nodes.Search().Look(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, nodes.Close())
		assert.Len(t, tidyBench(t.Context(), addrs, addrs, config{}, []string{"a", "b"}), 3, "left on all")
		runtime.ReadMemStats(&after)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20), "%q", head)
	}
}
