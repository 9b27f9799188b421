package protocol

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func clientsAt(t *testing.T, addrs ...string) (all []*redis.Client) {
	for _, a := range addrs {
		o, err := redis.ParseURL("redis://" + a)
		require.NoError(t, err)
		o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled} // has goroutines
		c := redis.NewClient(o)
		defer c.Close()
		all = append(all, c)
	}
	return all
}

// A server takes no name with a space, and says no to one that is not ASCII.
func TestClientNameIsReadBack(t *testing.T) {
	for _, owner := range []string{"", "web-1:77", "a:b:c", "ein Büro\n\x00", strings.Repeat("x", 300)} {
		n := NewClientName(clientsAt(t, "a:1", "b:2", "c:3"), "svc:", owner)
		text := n.String()
		assert.Regexp(t, `^[!-~]{0,108}$`, text)
		back, ok := ReadClientName(text)
		require.True(t, ok, text)
		n.Owner = back.Owner
		assert.Equal(t, n, back)
		assert.LessOrEqual(t, len(back.Owner), mostOfOwner)
		assert.Equal(t, 3, back.Nodes)
	}
	assert.Equal(t, "redlock:0123abcd:3:4567cdef:89ab0123:ein_B__ro__", ClientName{"0123abcd", 3, "4567cdef", "89ab0123", "ein Büro\n\x00"}.String())
	for _, name := range []string{"", "redlock", "redlock:0123abcd:3", "redlock:0123abcd:0:0123abcd:0123abcd:x", "redlock:0123abcd:3:0123abcd:0123abcd:a b",
		"redlock:0123abcd:3:0123abcd:0123abcd:" + strings.Repeat("x", 65), "redlock:0123ABCD:3:0123abcd:0123abcd:x"} {
		_, ok := ReadClientName(name)
		assert.False(t, ok, name)
	}
}

func TestDigestOfAListOfNodes(t *testing.T) {
	list := func(addrs ...string) string { return ListOf(clientsAt(t, addrs...)) }
	assert.Equal(t, list("a:1", "b:2", "c:3"), list("C:3", "a:1/0", "b:2"))
	for _, other := range []string{list("a:1", "b:2"), list("a:1", "b:2", "c:4"), list("a:1", "b:2", "c:3/1")} {
		assert.NotEqual(t, list("a:1", "b:2", "c:3"), other)
	}
	sentinel := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"a:1"}})
	defer sentinel.Close()
	assert.NotEqual(t, ListOf([]*redis.Client{sentinel}), ListOf([]*redis.Client{sentinel}), "it tells no address")
	assert.NotEqual(t, ScopeOf(""), ScopeOf("svc:"))
}
