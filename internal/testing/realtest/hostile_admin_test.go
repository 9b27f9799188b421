package realtest_test

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/testing/longtest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// text is a string as a server sends it.
func text(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }

// floods are servers that answer operators with more than they may, each reply by itself being one of Redis. One
// has a state of its own, so it is made for each server.
var floods = []struct {
	name string
	says func() func(words []string) string
	// patience is how long an operator waits for an answer; 0: for 50ms.
	patience time.Duration
}{
	{"names of queues without end", func() func([]string) string {
		return scans(func(n int) string { return fmt.Sprintf("{%d%s}:line", n, strings.Repeat("q", 40)) }, 1000, nil)
	}, 0},
	{"long names of queues", func() func([]string) string {
		return scans(func(n int) string { return fmt.Sprintf("{%d%s}:line", n, strings.Repeat("q", 8000)) }, 100, nil)
	}, 0},
	{"locks without end", func() func([]string) string {
		return scans(func(n int) string { return fmt.Sprint("lock", n) }, 500, map[string]string{"GETRANGE": text(aValue("x")), "PTTL": ":1000\r\n"})
	}, 0},
	{"locks with long names", func() func([]string) string {
		return scans(func(n int) string { return fmt.Sprint(strings.Repeat("n", 8000), n) }, 100, map[string]string{"GETRANGE": text(aValue(strings.Repeat("x", 256))), "PTTL": ":1000\r\n"})
	}, 0},
	{"locks with very long names", func() func([]string) string {
		return scans(func(n int) string { return fmt.Sprint(strings.Repeat("n", 800_000), n) }, 1, map[string]string{"GETRANGE": text(aValue("x")), "PTTL": ":1000\r\n"})
	}, 0},
	{"locks with values of a million bytes", func() func([]string) string {
		return scans(func(n int) string { return fmt.Sprint("lock", n) }, 500, map[string]string{"GETRANGE": text(aValue(strings.Repeat("x", 1_000_000))), "PTTL": ":1000\r\n"})
	}, 2 * time.Second},
	{"locks with values of a thousand bytes", func() func([]string) string {
		return scans(func(n int) string { return fmt.Sprint("lock", n) }, 500, map[string]string{"GETRANGE": text(aValue(strings.Repeat("x", 1000))), "PTTL": ":1000\r\n"})
	}, 0},
	{"shared locks with many holders each", func() func([]string) string {
		list := inspection(1000, 1000)
		return scans(func(n int) string { return fmt.Sprint("lock", n) }, 500, map[string]string{"GETRANGE": text("redlock:shared"), "PTTL": ":1000\r\n", "EVALSHA": list})
	}, 0},
	{"many waiters and holders, with long names", func() func([]string) string {
		list := inspection(100_000, 1000)
		return func(words []string) string { return map[string]string{"EVALSHA": list}[strings.ToUpper(words[0])] }
	}, 0},
	{"an answer of a million lists", func() func([]string) string {
		list := "*2\r\n" + strings.Repeat("*15000\r\n"+strings.Repeat("*0\r\n", 15_000), 2)
		return func(words []string) string {
			return map[string]string{"EVALSHA": list, "SCAN": list}[strings.ToUpper(words[0])]
		}
	}, 0},
	{"connections without end", func() func([]string) string { return clientList(15 << 20) }, 0},
	{"connections of few bytes", func() func([]string) string { return clientList(3 << 20) }, 0},
	{"connections that are long", func() func([]string) string { return clientList(3<<20, strings.Repeat("x=y ", 70)) }, 0},
	{"fields of INFO without end", func() func([]string) string {
		var b strings.Builder
		for i := range 150_000 {
			fmt.Fprintf(&b, "%x:\n", i)
		}
		info := text(b.String())
		return func(words []string) string { return map[string]string{"INFO": info}[strings.ToUpper(words[0])] }
	}, 0},
	{"settings without end", func() func([]string) string {
		list := "*16000\r\n" + strings.Repeat("$1\r\na\r\n", 16_000)
		return func(words []string) string {
			return map[string]string{"CONFIG": list, "ROLE": list}[strings.ToUpper(words[0])]
		}
	}, 0},
}

// aValue is that of a lock.
func aValue(owner string) string { return strings.Repeat("0f", 16) + "@" + owner }

// scans answers SCAN with names without end, so many at a time, and other commands as it is told.
func scans(name func(n int) string, atOnce int, others map[string]string) func([]string) string {
	var n atomic.Int64
	return func(words []string) string {
		if !strings.EqualFold(words[0], "SCAN") {
			return others[strings.ToUpper(words[0])]
		}
		var b strings.Builder
		fmt.Fprintf(&b, "*2\r\n$1\r\n7\r\n*%d\r\n", atOnce)
		for range atOnce {
			b.WriteString(text(name(int(n.Add(1)))))
		}
		return b.String()
	}
}

// clientList answers CLIENT LIST with so many bytes.
func clientList(bytes int, more ...string) func([]string) string {
	var b strings.Builder
	for i := 0; b.Len() < bytes-400; i++ {
		fmt.Fprintf(&b, "name=redlock:%08x:3:00000002:00000003:x db=0 %s\n", i, strings.Join(more, ""))
	}
	list := text(b.String())
	return func(words []string) string {
		if len(words) > 1 && strings.EqualFold(words[1], "LIST") {
			return list
		}
		return ""
	}
}

// inspection is what the script answers for a lock with so many waiters and holders.
func inspection(waiters, holders int) string {
	var b strings.Builder
	b.WriteString("*6\r\n" + text("string") + text("redlock:shared") + ":1000\r\n" + fmt.Sprintf(":%d\r\n*%d\r\n", waiters, 2*waiters))
	for i := range waiters {
		b.WriteString(text(fmt.Sprintf("p 1 %s%d", aValue("w"), i)) + ":1\r\n")
	}
	fmt.Fprintf(&b, "*%d\r\n", 3*holders)
	for i := range holders {
		b.WriteString(text(aValue(fmt.Sprint(strings.Repeat("h", 200), i))) + ":1000\r\n:0\r\n")
	}
	return b.String()
}

// Whatever nodes answer an operator, it takes no more memory than a budget: five of which each sends more names,
// values, holders, connections or fields than there are.
func TestOperatorsOfHostileNodes(t *testing.T) {
	calls := []struct {
		name string
		do   func(ctx context.Context, n *admin.Nodes)
	}{
		{"list", func(ctx context.Context, n *admin.Nodes) { _, _ = n.List(ctx, "", 1<<30) }},
		{"others", func(ctx context.Context, n *admin.Nodes) {
			_, _ = n.Check(ctx)
			_, _ = n.Clients(ctx)
			_, _ = n.Inspect(ctx, resource)
			_, _ = n.ForceRelease(ctx, resource, admin.Anything())
		}},
		{"search", func(ctx context.Context, n *admin.Nodes) {
			s := n.Search()
			for range 5 {
				_, _ = s.Look(ctx, []string{resource})
			}
		}},
	}
	for i, flood := range floods {
		for j, call := range calls {
			for k, way := range []string{"New", "Open"} {
				if !longtest.On() && (j == 2 || i%2 != k) {
					continue
				}
				t.Run(flood.name+": "+call.name+", "+way, func(t *testing.T) {
					var addrs []string
					var clients []redis.UniversalClient
					for range 5 {
						h := (&hostile{says: flood.says()}).start(t)
						addrs = append(addrs, h.l.Addr().String())
						c := redis.NewClient(&redis.Options{Addr: h.l.Addr().String()})
						t.Cleanup(func() { _ = c.Close() })
						clients = append(clients, c)
					}
					o := &admin.Options{Timeout: cmp.Or(flood.patience, 50*time.Millisecond)}
					nodes, err := admin.Open(addrs, o)
					if way == "New" {
						nodes, err = admin.New(clients, o)
					}
					require.NoError(t, err)
					defer nodes.Close()
					peak := peakMemory(func() { call.do(t.Context(), nodes) })
					t.Logf("%s: %.1f MB", t.Name(), float64(peak)/(1<<20))
					assert.Less(t, peak, int64(64<<20))
				})
			}
		}
	}
}
