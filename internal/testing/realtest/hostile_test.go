package realtest_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/testing/longtest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hostile is a server that keeps to the protocol but for one answer, which begins with some bytes and
// goes on with others without end.
type hostile struct {
	place       string // the command that gets the answer; "message": what comes behind SUBSCRIBE
	head, flood string
	// says is what it answers in place of all that, to commands for which it says anything; nil: to none.
	says func(words []string) string

	l    net.Listener
	done sync.WaitGroup
	mu   sync.Mutex
	open map[net.Conn]bool
}

func startHostile(t *testing.T, place, head, flood string) *hostile {
	h := &hostile{place: place, head: head, flood: strings.Repeat(flood, 1+(32<<10)/max(1, len(flood)))}
	if flood == "" {
		h.flood = ""
	}
	return h.start(t)
}

func (h *hostile) start(t *testing.T) *hostile {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	h.l, h.open = l, make(map[net.Conn]bool)
	h.done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			h.mu.Lock()
			h.open[c] = true
			h.mu.Unlock()
			h.done.Go(func() { h.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		h.mu.Lock()
		for c := range h.open {
			_ = c.Close()
		}
		h.mu.Unlock()
		h.done.Wait()
	})
	return h
}

// serve answers on one connection.
func (h *hostile) serve(c net.Conn) {
	defer func() {
		_ = c.Close()
		h.mu.Lock()
		delete(h.open, c)
		h.mu.Unlock()
	}()
	in := bufio.NewReader(c)
	for {
		words, err := command(in)
		if err != nil || len(words) == 0 {
			return
		}
		name := strings.ToUpper(words[0])
		answer := honest(name, words)
		evil := name == h.place && answer != tried
		if h.says != nil {
			if said := h.says(words); said != "" {
				answer = said
			}
		}
		if name == "SUBSCRIBE" && h.place == "MESSAGE" {
			evil, answer = true, answer+h.head
		} else if evil {
			answer = h.head
		}
		for ; answer != ""; answer = answer[min(len(answer), 32<<10):] { // a write copies
			if _, err := io.WriteString(c, answer[:min(len(answer), 32<<10)]); err != nil {
				return
			}
		}
		for evil && h.flood != "" {
			if _, err := io.WriteString(c, h.flood); err != nil {
				return
			}
		}
	}
}

// command reads one.
func command(in *bufio.Reader) (words []string, err error) {
	number := func() (int, error) {
		line, err := in.ReadString('\n')
		if err != nil || len(line) < 3 {
			return 0, io.ErrUnexpectedEOF
		}
		return strconv.Atoi(line[1 : len(line)-2])
	}
	n, err := number()
	for range n {
		size, err := number()
		if err != nil {
			return nil, err
		}
		word := make([]byte, size+2)
		if _, err := io.ReadFull(in, word); err != nil {
			return nil, err
		}
		words = append(words, string(word[:size]))
	}
	return words, err
}

// tried says that a script without arguments runs.
const tried = ":1\r\n"

// honest is what a server answers where another holds the lock.
func honest(name string, words []string) string {
	text := func(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }
	switch name {
	case "PING":
		return "+PONG\r\n"
	case "INFO":
		switch words[1] {
		case "server":
			return text("redis_version:7.0.15\r\nrun_id:" + strings.Repeat("a", 40) + "\r\nuptime_in_seconds:1000000\r\n")
		case "replication":
			return text("role:master\r\nmaster_replid:" + strings.Repeat("b", 40) + "\r\n")
		}
		return text("")
	case "CLIENT":
		if strings.EqualFold(words[1], "ID") {
			return ":7\r\n"
		}
		return "+OK\r\n"
	case "TIME":
		return "*2\r\n$10\r\n1700000000\r\n$1\r\n5\r\n"
	case "GET", "SET":
		return "$-1\r\n"
	case "SUBSCRIBE":
		return fmt.Sprintf("*3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:1\r\n", len(words[1]), words[1])
	case "PUBLISH":
		return ":0\r\n"
	case "SELECT", "AUTH":
		return "+OK\r\n"
	case "EVALSHA":
		if words[2] == "0" || words[2] == "1" && len(words) == 4 {
			return tried
		}
	}
	return "-ERR unknown command '" + name + "'\r\n"
}

// What a node announces takes no memory, what it sends is bounded, and nothing that it says ends the
// program: five nodes of which one answer each is a length that no reply has, a line or a list without
// end, lists in lists, or more replies than were asked for.
func TestHostileNodes(t *testing.T) {
	places := []string{"HELLO", "CLIENT", "PING", "INFO", "GET", "SET", "EVALSHA", "SUBSCRIBE", "MESSAGE"}
	answers := []struct{ name, head, flood string }{
		{"a string as long as memory", "$9223372036854775806\r\n", ""},
		{"a list as long as memory", "*9223372036854775806\r\n", ""},
		{"a map as long as memory", "%4611686018427387903\r\n", ""},
		{"a string of 1 TB", "$1000000000000\r\n", "x"},
		{"a string of 512 MB", "$536870912\r\n", "x"},
		{"a list of 512 M numbers", "*536870912\r\n", ":1\r\n"},
		{"a list of many lists", "*536870912\r\n", "*0\r\n"},
		{"lists in lists", "", "*1\r\n"},
		{"wide lists in lists", "", "*1000\r\n"},
		{"a line without an end", "+", "x"},
		{"an error without an end", "-ERR ", "x"},
		{"a number without an end", ":", "1"},
		{"a length without an end", "$", "1"},
		{"attributes", "", "|0\r\n"},
		{"pushes", "", ">2\r\n+invalidate\r\n*0\r\n"},
		{"more than was asked for", "", "+OK\r\n"},
		{"messages of no parts", "*0\r\n", "*0\r\n"},
		{"messages of other parts", "*3\r\n:1\r\n:1\r\n:1\r\n", ""},
		{"messages that are half there", "*1\r\n$7\r\nmessage\r\n", ""},
		{"long messages", "", "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$65536\r\n" + strings.Repeat("x", 65536) + "\r\n"},
	}
	n := 0
	for _, place := range places {
		for _, a := range answers {
			n++
			if n%7 != 0 && !longtest.On() {
				continue
			}
			t.Run(place+": "+a.name, func(t *testing.T) {
				clients := make([]redis.UniversalClient, 5)
				for i := range clients {
					h := startHostile(t, place, a.head, a.flood)
					c := redis.NewClient(&redis.Options{Addr: h.l.Addr().String()})
					t.Cleanup(func() { _ = c.Close() })
					clients[i] = c
				}
				peak := peakMemory(func() { useAll(t, clients) })
				t.Logf("%.1f MB", float64(peak)/(1<<20))
				assert.Less(t, peak, int64(64<<20))
			})
		}
	}
}

// useAll uses nodes in all ways.
func useAll(t *testing.T, clients []redis.UniversalClient) {
	rl, err := newOf(clients, &redlock.Options{TTL: time.Second, NodeTimeout: 100 * time.Millisecond, RestartGuard: time.Millisecond})
	require.NoError(t, err)
	defer rl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	nodes := operator(t, rl)
	var all sync.WaitGroup
	all.Go(func() { _, _ = nodes.Check(ctx) })
	all.Go(func() { _, _ = rl.Mutex(resource).Acquire(ctx) })
	for range 4 {
		_, err := rl.Mutex(resource).TryAcquire(ctx)
		assert.Error(t, err)
		_, _ = nodes.Inspect(ctx, resource)
		_, _ = nodes.ForceRelease(ctx, resource, admin.HeldBy(strings.Repeat("0", 32)))
	}
	all.Wait()
}

// peakMemory is by how much the memory in use grows at most while f runs.
func peakMemory(f func()) int64 {
	read := func() int64 {
		s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
		metrics.Read(s)
		return int64(s[0].Value.Uint64() + s[1].Value.Uint64())
	}
	// What earlier tests hold is no allowance for garbage.
	defer debug.SetGCPercent(debug.SetGCPercent(20))
	runtime.GC()
	before, peaks, over := read(), []int64{0}, make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			peaks[0] = slices.Max([]int64{peaks[0], read() - before})
			select {
			case <-tick.C:
			case <-over:
				return
			}
		}
	})
	f()
	close(over)
	watch.Wait()
	return peaks[0]
}

// A node that answers with a fencing token above all that there are spoils neither the lock's token nor the
// counters of the others.
func TestFencingTokenAboveAll(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 2)
	h := startHostile(t, "EVALSHA", ":4611686018427387904\r\n", "")
	m := newOn(t, brisk, defaultClient(t, f.servers[0].Addr()), defaultClient(t, f.servers[1].Addr()), defaultClient(t, h.l.Addr().String())).
		Mutex(resource, redlock.WithFencing())
	for range 3 {
		lock, err := m.TryAcquire(t.Context())
		require.NoError(t, err)
		require.LessOrEqual(t, lock.Fence(), uint64(1<<52))
		require.NoError(t, lock.Release(t.Context()))
	}
}
