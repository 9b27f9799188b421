package web_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/cmd/redlock/internal/web"
	"github.com/quorumlock/redlock/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const patience = 30 * time.Second

// serve runs a server until the test ends.
func serve(t *testing.T, listen string, hub *web.Hub, do func(web.Request) error) *web.Server {
	t.Helper()
	s, err := web.Listen(listen, "demo", hub, do)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
		http.DefaultClient.CloseIdleConnections()
	})
	return s
}

func TestOnlyWhoKnowsTheTokenAndComesFromThisPageIsAnswered(t *testing.T) {
	asked := 0
	s := serve(t, web.Loopback, web.NewHub(), func(web.Request) error { asked++; return nil })
	u, err := url.Parse(s.URL())
	require.NoError(t, err)
	require.Len(t, strings.Trim(u.Path, "/"), 32, "128 random bits")
	_, port, _ := net.SplitHostPort(u.Host)
	own := "http://" + u.Host
	for _, c := range []struct {
		name, method, path, host, origin, body string
		code                                   int
	}{
		{"the page", "GET", u.Path, "", "", "", 200},
		{"its head", "HEAD", u.Path, "", "", "", 200},
		{"a head without an end", "HEAD", u.Path + "events", "", "", "", 405},
		{"its script", "GET", u.Path + "demo.js", "", own, "", 200},
		{"by another name of this machine", "GET", u.Path, "localhost:" + port, "", "", 200},
		{"through a tunnel with another port", "GET", u.Path, "localhost:9000", "", "", 200},
		{"by IPv6", "GET", u.Path, "[::1]:9000", "", "", 200},
		{"a button", "POST", u.Path + "do", "", own, `{"do":"kill","node":1}`, 204},
		{"no token", "GET", "/", "", "", "", 404},
		{"half a token", "GET", u.Path[:10] + "/", "", "", "", 404},
		{"another token", "GET", "/" + strings.Repeat("0", 32) + "/", "", "", "", 404},
		{"events without a token", "GET", "/events", "", "", "", 404},
		{"out of the folder", "GET", u.Path + "../server.go", "", "", "", 404},
		{"a name bound to this address", "GET", u.Path, "evil.example:" + port, "", "", 403},
		{"the same, with its own origin", "POST", u.Path + "do", "evil.example:" + port, "http://evil.example:" + port, `{"do":"kill"}`, 403},
		{"an address from elsewhere", "GET", u.Path, "10.0.0.1:" + port, "", "", 403},
		{"a page of others looks", "GET", u.Path, "", "http://evil.example", "", 403},
		{"a page of others presses a button", "POST", u.Path + "do", "", "http://evil.example", `{"do":"kill"}`, 403},
		{"a page on another port", "POST", u.Path + "do", "", "http://127.0.0.1:1", `{"do":"kill"}`, 403},
		{"no origin", "POST", u.Path + "do", "", "", `{"do":"kill"}`, 403},
		{"a sandboxed page", "POST", u.Path + "do", "", "null", `{"do":"kill"}`, 403},
		{"a button by GET", "GET", u.Path + "do", "", "", "", 405},
		{"no JSON", "POST", u.Path + "do", "", own, `kill`, 400},
		{"more than was asked for", "POST", u.Path + "do", "", own, `{"do":"kill","shell":"rm"}`, 400},
		{"endless", "POST", u.Path + "do", "", own, `{"do":"` + strings.Repeat("x", 1<<16) + `"}`, 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked = 0
			r, err := http.NewRequest(c.method, "http://"+u.Host+c.path, strings.NewReader(c.body))
			require.NoError(t, err)
			r.Host = c.host
			r.Header.Set("Content-Type", "application/json")
			if c.origin != "" {
				r.Header.Set("Origin", c.origin)
			}
			answer, err := http.DefaultTransport.RoundTrip(r)
			require.NoError(t, err)
			defer answer.Body.Close()
			assert.Equal(t, c.code, answer.StatusCode)
			assert.Equal(t, c.code == 204, asked == 1)
			assert.Contains(t, answer.Header.Get("Content-Security-Policy"), "default-src 'none'")
			assert.Equal(t, "no-referrer", answer.Header.Get("Referrer-Policy"))
		})
	}
	t.Run("a form", func(t *testing.T) {
		asked = 0
		r, err := http.NewRequest("POST", own+u.Path+"do", strings.NewReader(`{"do":"kill"}`))
		require.NoError(t, err)
		r.Header.Set("Origin", own)
		r.Header.Set("Content-Type", "text/plain") // which pages of others may send without asking
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		answer.Body.Close()
		assert.Equal(t, 405, answer.StatusCode)
		assert.Zero(t, asked)
	})
}

func TestItIsOfThisMachineOnlyUnlessToldOtherwise(t *testing.T) {
	s := serve(t, web.Loopback, web.NewHub(), nil)
	assert.True(t, s.Loopback())
	assert.Contains(t, s.URL(), "http://127.0.0.1:")

	s = serve(t, "0.0.0.0:0", web.NewHub(), nil)
	assert.False(t, s.Loopback())
	u, err := url.Parse(s.URL())
	require.NoError(t, err)
	for host, code := range map[string]int{"10.1.2.3": 200, "evil.example": 403} {
		r, err := http.NewRequest("GET", s.URL(), nil)
		require.NoError(t, err)
		r.Host = net.JoinHostPort(host, u.Port())
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		answer.Body.Close()
		assert.Equal(t, code, answer.StatusCode, host)
	}
	// A page without buttons has nowhere to send anything.
	r, err := http.NewRequest("POST", s.URL()+"do", strings.NewReader("{}"))
	require.NoError(t, err)
	r.Header.Set("Origin", "http://"+u.Host)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	answer.Body.Close()
	assert.Equal(t, 405, answer.StatusCode)

	_, err = web.Listen("everywhere", "demo", web.NewHub(), nil)
	assert.ErrorContains(t, err, `"everywhere" is no host:port`)
}

func TestARefusalIsToldToWhoPressedTheButton(t *testing.T) {
	s := serve(t, web.Loopback, web.NewHub(), func(r web.Request) error {
		if r.Node == 1 {
			return web.Refused("not now")
		}
		return errors.New("no such node")
	})
	u, _ := url.Parse(s.URL())
	for body, want := range map[string]int{`{"do":"kill","node":1}`: 409, `{"do":"kill","node":9}`: 400} {
		r, err := http.NewRequest("POST", s.URL()+"do", strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("Origin", "http://"+u.Host)
		r.Header.Set("Content-Type", "application/json")
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		text, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		assert.Equal(t, want, answer.StatusCode)
		assert.Contains(t, "not now\nno such node\n", string(text))
	}
}

// stream reads events as a browser does.
type stream struct {
	t    *testing.T
	body io.Closer
	in   *bufio.Scanner
}

type event struct {
	kind, id string
	data     struct {
		Text  string
		State json.RawMessage
	}
}

func look(t *testing.T, s *web.Server, after string) *stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, "GET", s.URL()+"events", nil)
	require.NoError(t, err)
	if after != "" {
		r.Header.Set("Last-Event-ID", after)
	}
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	require.Equal(t, 200, answer.StatusCode)
	require.Equal(t, "text/event-stream", answer.Header.Get("Content-Type"))
	t.Cleanup(func() { answer.Body.Close() })
	in := bufio.NewScanner(answer.Body)
	in.Buffer(nil, 16<<20)
	return &stream{t, answer.Body, in}
}

func (s *stream) next() (e event) {
	s.t.Helper()
	for s.in.Scan() {
		field, value, _ := strings.Cut(s.in.Text(), ": ")
		switch field {
		case "event":
			e.kind = value
		case "id":
			e.id = value
		case "data":
			require.NoError(s.t, json.Unmarshal([]byte(value), &e.data))
		case "":
			if e.kind != "" {
				return e
			}
		}
	}
	s.t.Fatalf("the stream ended: %v", s.in.Err())
	return e
}

// until reads up to a state.
func (s *stream) until(state string) (news []event) {
	s.t.Helper()
	for {
		e := s.next()
		switch {
		case e.kind == "news":
			news = append(news, e)
		case e.kind == "state" && string(e.data.State) == state:
			return news
		}
	}
}

func TestAViewerThatComesBackHearsWhatItMissed(t *testing.T) {
	hub := web.NewHub()
	s := serve(t, web.Loopback, hub, nil)
	hub.Tell(web.News{Text: "one"})
	hub.Show(1)
	v := look(t, s, "")
	news := v.until("1")
	require.Len(t, news, 1)
	assert.Equal(t, "one", news[0].data.Text)
	v.body.Close()
	hub.Tell(web.News{Text: "two"})
	hub.Tell(web.News{Text: "three"})
	hub.Show(2)
	news = look(t, s, news[0].id).until("2")
	require.Len(t, news, 2)
	assert.Equal(t, "two", news[0].data.Text)
	assert.Equal(t, "three", news[1].data.Text)
	// An id of another server's is no reason to hear nothing.
	assert.Len(t, look(t, s, "99999").until("2"), 3)
}

func TestASlowOrDeadViewerHoldsNothingUp(t *testing.T) {
	hub := web.NewHub()
	s := serve(t, web.Loopback, hub, nil)
	u, err := url.Parse(s.URL())
	require.NoError(t, err)
	// It asks, and never reads: neither a reset nor an end tells of that.
	dead, err := net.Dial("tcp", u.Host)
	require.NoError(t, err)
	defer dead.Close()
	_, err = io.WriteString(dead, "GET "+u.Path+"events HTTP/1.1\r\nHost: "+u.Host+"\r\n\r\n")
	require.NoError(t, err)
	require.Eventually(t, func() bool { watched, _ := hub.Watched(); return watched }, patience, time.Millisecond)

	v := look(t, s, "")
	big := strings.Repeat("x", 1<<20)
	for i := range 32 { // more than sockets buffer
		state := big + string(rune('a'+i))
		hub.Show(state)
		want, _ := json.Marshal(state)
		v.until(string(want))
	}
	v.body.Close()
	// It does not count as somebody who watches for ever, either.
	assert.Eventually(t, func() bool { watched, _ := hub.Watched(); return !watched }, patience, 10*time.Millisecond)
}

func TestThereIsAnEndToHowManyLook(t *testing.T) {
	hub := web.NewHub()
	s := serve(t, web.Loopback, hub, nil)
	var all []*stream
	for range 64 {
		all = append(all, look(t, s, ""))
	}
	answer, err := http.Get(s.URL() + "events")
	require.NoError(t, err)
	answer.Body.Close()
	assert.Equal(t, http.StatusServiceUnavailable, answer.StatusCode)
	all[0].body.Close()
	assert.Eventually(t, func() bool {
		answer, err := http.Get(s.URL() + "events")
		require.NoError(t, err)
		defer answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	}, patience, 10*time.Millisecond)
}

func TestTheEndIsTold(t *testing.T) {
	hub := web.NewHub()
	s := serve(t, web.Loopback, hub, nil)
	v := look(t, s, "")
	v.until("null")
	hub.Close()
	for v.next().kind != "end" {
	}
}
