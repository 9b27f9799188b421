// Package web serves a page of the command's to browsers: what there is to see as server-sent
// events, and back what its buttons ask for.
//
// Who has the URL may look, so it has a random token in it. Pages of other sites, which the
// same browser shows, neither know the token nor get past the checks of Host and Origin.
package web

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strings"
	"time"
)

//go:embed page
var files embed.FS

// Loopback is where a page is served unless told otherwise: a free port that only this
// machine reaches.
const Loopback = "127.0.0.1:0"

const (
	headersMost = 5 * time.Second // for a request's headers
	idleMost    = time.Minute     // a connection without a request
	endMost     = time.Second     // for viewers to hear that this is the end
	bodyMost    = 1 << 10
)

// Request is what a button asks for.
type Request struct {
	Do   string `json:"do"`
	Node int    `json:"node"` // counted from 0; 0 where it does not matter
}

// Refused is why a request is not carried out, in words for whoever pressed the button.
type Refused string

func (r Refused) Error() string { return string(r) }

// Server serves one page. It is made by Listen.
type Server struct {
	hub      *Hub
	do       func(Request) error
	page     string
	token    string
	name     string // of the host, where one was given; "" for an address
	loopback bool   // nobody from elsewhere can reach it
	addr     *net.TCPAddr
	listener net.Listener
}

// Listen opens the page at host:port; Serve answers. page is "demo" or
// "watch". do carries out what buttons ask for; if it is nil the page has none. An error of
// type Refused is shown to whoever pressed the button.
func Listen(hostport, page string, hub *Hub, do func(Request) error) (*Server, error) {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil, fmt.Errorf("%q is no host:port to listen on: %w", hostport, err)
	}
	l, err := net.Listen("tcp", hostport)
	if err != nil {
		return nil, err
	}
	addr := l.Addr().(*net.TCPAddr)
	s := &Server{hub: hub, do: do, page: page, token: newToken(), loopback: addr.IP.IsLoopback(), addr: addr, listener: l}
	if _, err := netip.ParseAddr(host); err != nil {
		s.name = host
	}
	return s, nil
}

func newToken() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// URL is where the page is. A server that listens on all addresses has others, too.
func (s *Server) URL() string {
	host := s.addr.IP.String()
	switch {
	case s.name != "" && !s.loopback:
		host = s.name
	case s.addr.IP.IsUnspecified():
		host = "127.0.0.1"
	}
	return fmt.Sprintf("http://%s/%s/", net.JoinHostPort(host, fmt.Sprint(s.addr.Port)), s.token)
}

// Loopback says whether only this machine can reach the page.
func (s *Server) Loopback() bool { return s.loopback }

// Close stops listening, where Serve does not get to it.
func (s *Server) Close() { _ = s.listener.Close() }

// Serve answers until ctx ends. Then it tells the viewers, closes the hub, and returns.
func (s *Server) Serve(ctx context.Context) error {
	server := &http.Server{Handler: s, ReadHeaderTimeout: headersMost, IdleTimeout: idleMost, MaxHeaderBytes: 8 << 10}
	ended := make(chan struct{})
	defer func() { <-ended }()
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		s.hub.Close()
		parting, cancel := context.WithTimeout(context.Background(), endMost)
		defer cancel()
		if server.Shutdown(parting) != nil {
			_ = server.Close()
		}
	})
	err := server.Serve(s.listener)
	if stop() { // it was not the end of ctx
		s.hub.Close()
		close(ended)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

var headers = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Referrer-Policy":              "no-referrer", // the URL has the token in it
	"X-Content-Type-Options":       "nosniff",
	"Cache-Control":                "no-store",
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for k, v := range headers {
		w.Header().Set(k, v)
	}
	if !s.knowsHost(r.Host) || !sameOrigin(r) {
		http.Error(w, "this page is not served under that name, or to pages of others", http.StatusForbidden)
		return
	}
	token, rest, slash := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) != 1 || !slash:
		http.NotFound(w, r)
	case rest == "do" && s.do != nil:
		s.carryOut(w, r)
	case r.Method != http.MethodGet && (r.Method != http.MethodHead || rest == "events"):
		w.Header().Set("Allow", http.MethodGet)
		http.Error(w, "only GET", http.StatusMethodNotAllowed)
	case rest == "events":
		s.events(w, r)
	default:
		s.file(w, r, rest)
	}
}

// knowsHost keeps out pages that have bound a name of theirs to our address: to the browser
// they would be of one origin with us. A literal address cannot be bound to another.
func (s *Server) knowsHost(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	if err != nil {
		return strings.EqualFold(host, "localhost") || s.name != "" && strings.EqualFold(host, s.name)
	}
	return addr.IsLoopback() || !s.loopback
}

// sameOrigin: browsers name the origin of a page that posts something.
func sameOrigin(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return r.Method == http.MethodGet || r.Method == http.MethodHead
	}
	u, err := url.Parse(origin)
	return err == nil && u.Host == r.Host
}

func (s *Server) file(w http.ResponseWriter, r *http.Request, name string) {
	if name == "" {
		name = s.page + ".html"
	}
	text, err := files.ReadFile("page/" + name)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", mime.TypeByExtension(path.Ext(name)))
	_, _ = w.Write(text)
}

func (s *Server) carryOut(w http.ResponseWriter, r *http.Request) {
	// Of all content types, browsers let pages of others send a few without asking; not this.
	if r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
		http.Error(w, "only POST, of application/json", http.StatusMethodNotAllowed)
		return
	}
	var asked Request
	d := json.NewDecoder(io.LimitReader(r.Body, bodyMost))
	d.DisallowUnknownFields()
	if err := d.Decode(&asked); err != nil {
		http.Error(w, "no request: "+err.Error(), http.StatusBadRequest)
		return
	}
	if err := s.do(asked); err != nil {
		code := http.StatusBadRequest
		if errors.As(err, new(Refused)) {
			code = http.StatusConflict
		}
		http.Error(w, err.Error(), code)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
