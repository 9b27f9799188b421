// Command webhandler is a web server that charges an order once, however often and on however
// many servers the button is pressed. It answers in time: 409 while another request works on
// the order, and 503 while the lock's nodes are out of reach. The program sends itself some
// requests, checks the answers, and ends. With -listen it serves until it is interrupted.
//
//	go run -C examples ./webhandler
//	go run -C examples ./webhandler -listen 127.0.0.1:8080
//	curl -i -X POST http://127.0.0.1:8080/orders/42/charge
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/examples/internal/nodes"
)

// patience is how long a request waits for another one that works on the same order. What is
// left of the budget is for its own work.
const patience = time.Second

// budget is how long a request may take altogether, including the wait. It is less than the
// timeouts of clients and proxies in front of this server. Otherwise they would time out
// first, and try again without knowing the result of the first try.
const budget = 2 * time.Second

func main() {
	addrs := flag.String("addrs", "", nodes.Usage)
	listen := flag.String("listen", "", "serve at this `address` until interrupted")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	n, err := nodes.Start(*addrs)
	if err == nil {
		err = run(ctx, os.Stdout, n, *listen)
		n.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// shop is what the handlers need. All requests of a process share one Redlock.
type shop struct {
	rl   *redlock.Redlock
	keys string // what the keys of its locks begin with
	log  *log.Logger

	mu      sync.Mutex
	charges map[string]int // by order; stands for a database and a payment provider
}

func (s *shop) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/{id}/charge", s.charge)
	return mux
}

func (s *shop) charge(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	// The request's context ends when the client goes away; then its place in the wait queue
	// is given up too. The budget bounds everything that is done under the context.
	ctx, cancel := context.WithTimeout(r.Context(), budget)
	defer cancel()

	answer := "charged"
	err := s.rl.Mutex(s.keys+"order:"+id, redlock.WithMaxWait(patience)).Do(ctx, func(ctx context.Context, _ *redlock.Lock) error {
		// Look first, under the lock: a request that waited finds the order charged already. A
		// lock keeps two requests from charging at once; it does not keep the second one from
		// charging again.
		done, err := s.charged(ctx, id)
		if err != nil {
			return err
		}
		if done {
			answer = "charged already"
			return nil
		}
		return s.pay(ctx, id)
	})
	if err == nil {
		fmt.Fprintln(w, answer)
		return
	}

	// In all other cases, ErrLost or the payment's own error, the payment may have been made or
	// not. To try again is right, because the handler looks first.
	status := http.StatusInternalServerError
	switch {
	case r.Context().Err() != nil:
		return // the client has gone
	case errors.Is(err, redlock.ErrHeld):
		// Before DeadlineExceeded: who waited for too long gets both, the deadline and the reason.
		status = http.StatusConflict
		w.Header().Set("Retry-After", "1")
	case errors.Is(err, redlock.ErrNoQuorum):
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "5")
	case errors.Is(err, context.DeadlineExceeded):
		status = http.StatusServiceUnavailable // the payment itself took too long
	}
	// The error names every node: for the log, not for the client.
	s.log.Printf("charge %q: %v", id, err)
	http.Error(w, http.StatusText(status), status)
}

func (s *shop) charged(ctx context.Context, id string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.charges[id] > 0, ctx.Err()
}

// pay takes a moment and can be called off until it is made.
func (s *shop) pay(ctx context.Context, id string) error {
	select {
	case <-time.After(20 * time.Millisecond):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.charges[id]++
	return nil
}

func run(ctx context.Context, out io.Writer, n *nodes.Nodes, listen string) error {
	rl, err := redlock.Open(ctx, n.Addrs, nil)
	if err != nil {
		return err
	}
	defer rl.Close()

	logger := log.New(out, "", 0)
	s := &shop{rl: rl, keys: "example-", log: logger, charges: make(map[string]int)}
	at := listen
	if at == "" {
		at = "127.0.0.1:0"
		s.keys += rand.Text()[:8] + ":" // trials do not meet
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: budget, WriteTimeout: 2 * budget}
	serving, ctx := errgroup.WithContext(ctx)
	serving.Go(func() error { return server.Serve(l) })
	logger.Printf("serving at http://%s", l.Addr())

	if listen == "" {
		err = try(ctx, logger, "http://"+l.Addr().String(), n, s)
	} else {
		<-ctx.Done()
	}
	// Requests under way are finished, and their locks released, before rl is closed.
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*budget)
	defer cancel()
	err = errors.Join(err, server.Shutdown(ending))
	if served := serving.Wait(); !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// try is a client: it sends requests and checks the answers.
func try(ctx context.Context, out *log.Logger, url string, n *nodes.Nodes, s *shop) error {
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	ask := func(id string) (int, error) {
		req, err := http.NewRequestWithContext(ctx, "POST", url+"/orders/"+id+"/charge", nil)
		if err != nil {
			return 0, err
		}
		start := time.Now()
		resp, err := client.Do(req)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		out.Printf("order %s: %d after %v: %s", id, resp.StatusCode, time.Since(start).Round(time.Millisecond), body)
		return resp.StatusCode, err
	}
	expect := func(id string, want int) error {
		got, err := ask(id)
		for tries := 1; err == nil && got != want && want == http.StatusOK && tries < 3; tries++ {
			got, err = ask(id) // as Retry-After says: a busy machine may be as slow as an outage
		}
		if err == nil && got != want {
			err = fmt.Errorf("order %s was answered %d, not %d", id, got, want)
		}
		return err
	}

	out.Print("\nfive clicks at once")
	var clicks errgroup.Group
	for range 5 {
		clicks.Go(func() error { return expect("42", http.StatusOK) })
	}
	if err := clicks.Wait(); err != nil {
		return err
	}
	if charges := s.charges["42"]; charges != 1 {
		return fmt.Errorf("order 42 was charged %d times", charges)
	}

	out.Print("\nanother server works on the order for longer than requests are patient")
	other, err := s.rl.Mutex(s.keys + "order:7").Acquire(ctx)
	if err != nil {
		return err
	}
	if err := expect("7", http.StatusConflict); err != nil {
		return err
	}
	if err := other.Release(ctx); err != nil {
		return err
	}
	if err := expect("7", http.StatusOK); err != nil {
		return err
	}

	if n.Cluster == nil {
		return nil
	}
	out.Print("\na majority of the nodes hangs, and goes on")
	for _, node := range n.Cluster.Nodes()[:3] {
		node.Hang()
	}
	if err := expect("8", http.StatusServiceUnavailable); err != nil {
		return err
	}
	for _, node := range n.Cluster.Nodes()[:3] {
		node.Resume()
	}
	return expect("8", http.StatusOK)
}
