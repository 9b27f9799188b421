package web

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const (
	viewersMost = 64
	newsKept    = 200 // sentences, for viewers that come back
	newsFirst   = 12  // of them for a viewer who is new
	beat        = 4 * time.Second
	writeMost   = 5 * time.Second // for a viewer to take what is written to it
)

// Hub has what there is to see, for any number of viewers. Whoever publishes never waits for
// a viewer: each takes the present state when it gets to it, and leaves out those that it was
// too slow for. All methods may be called from any goroutine.
type Hub struct {
	start time.Time

	mu      sync.Mutex
	state   json.RawMessage
	version int64
	news    []item
	told    int64 // the number of the latest news
	viewers int
	closed  bool
	changed chan struct{} // closed by the next change
	arrived chan struct{} // has one element if a viewer came
}

type item struct {
	id   int64
	text []byte // JSON
}

// NewHub returns a hub whose clock begins now.
func NewHub() *Hub {
	return &Hub{start: time.Now(), state: json.RawMessage("null"), changed: make(chan struct{}), arrived: make(chan struct{}, 1)}
}

// At is a time by the clock of the page: in milliseconds since the hub was made. A state has
// such times in place of how long something lasts yet, so that it changes only when something
// has happened. The zero time is 0.
func (h *Hub) At(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Sub(h.start).Milliseconds()
}

// Show publishes a state. One that equals the last costs the viewers nothing.
func (h *Hub) Show(state any) {
	text, err := json.Marshal(state)
	if err != nil {
		panic("web: " + err.Error()) // no state of ours
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if bytes.Equal(text, h.state) {
		return
	}
	h.state = text
	h.version++
	h.wake()
}

// News is a sentence about something that has happened.
type News struct {
	// Tone is "good", "bad", "odd" or "": how it looks.
	Tone string `json:"tone,omitempty"`
	// Aloud: screen readers read it out. What happens all the time is not.
	Aloud bool   `json:"aloud,omitempty"`
	Text  string `json:"text"`
	At    int64  `json:"at"`
}

// Tell publishes a sentence.
func (h *Hub) Tell(n News) {
	n.At = h.At(time.Now())
	text, err := json.Marshal(n)
	if err != nil {
		panic("web: " + err.Error())
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.told++
	h.news = append(h.news, item{h.told, text})
	if len(h.news) > newsKept {
		h.news = append([]item(nil), h.news[len(h.news)-newsKept:]...)
	}
	h.wake()
}

// wake needs mu.
func (h *Hub) wake() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// Watched says whether anybody looks, and returns a channel that has an element when the next
// viewer has come. Only one goroutine may wait for it.
func (h *Hub) Watched() (watched bool, arrival <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.viewers > 0, h.arrived
}

// Close tells the viewers that this is the end.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.closed = true
		h.wake()
	}
}

func (h *Hub) join() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.viewers == viewersMost || h.closed {
		return false
	}
	h.viewers++
	select {
	case h.arrived <- struct{}{}:
	default:
	}
	return true
}

func (h *Hub) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.viewers--
}

// viewer is what one has got so far.
type viewer struct {
	version int64 // of the state; -1: none
	told    int64
}

// next writes what the viewer has not got yet. changed is closed when there is more.
func (h *Hub) next(v *viewer, out *bytes.Buffer) (changed <-chan struct{}, closed bool) {
	h.mu.Lock()
	state, news, closed, changed := h.state, h.news, h.closed, h.changed
	fresh := v.version != h.version
	v.version = h.version
	h.mu.Unlock()
	for _, n := range news { // before the state: what is seen has been told
		if n.id > v.told {
			fmt.Fprintf(out, "id: %d\nevent: news\ndata: %s\n\n", n.id, n.text)
			v.told = n.id
		}
	}
	if fresh {
		fmt.Fprintf(out, "event: state\ndata: {\"now\":%d,\"state\":%s}\n\n", h.At(time.Now()), state)
	}
	if closed {
		out.WriteString("event: end\ndata: {}\n\n")
	}
	return changed, closed
}

// viewer is one that has heard the news up to the id that its browser remembers.
func (h *Hub) viewer(lastEventID string) *viewer {
	h.mu.Lock()
	defer h.mu.Unlock()
	told, err := strconv.ParseInt(lastEventID, 10, 64)
	if err != nil || told > h.told {
		told = h.told - newsFirst
	}
	return &viewer{version: -1, told: told}
}

// events serves the stream until the viewer is gone, takes nothing for too long, or the end.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	if !s.hub.join() {
		http.Error(w, "too many look at this page already", http.StatusServiceUnavailable)
		return
	}
	defer s.hub.leave()
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	v := s.hub.viewer(cmp.Or(r.Header.Get("Last-Event-ID"), r.URL.Query().Get("after")))
	out := bytes.NewBufferString("retry: 1000\n\n")
	idle := time.NewTimer(beat)
	defer idle.Stop()
	for {
		changed, closed := s.hub.next(v, out)
		if out.Len() > 0 {
			_ = control.SetWriteDeadline(time.Now().Add(writeMost))
			if _, err := out.WriteTo(w); err != nil || control.Flush() != nil {
				return
			}
		}
		if closed {
			return
		}
		idle.Reset(beat)
		select {
		case <-changed:
		case <-idle.C: // so that a page notices when its connection is dead
			fmt.Fprintf(out, "event: beat\ndata: {\"now\":%d}\n\n", s.hub.At(time.Now()))
		case <-r.Context().Done():
			return
		}
	}
}
