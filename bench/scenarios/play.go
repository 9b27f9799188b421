package scenarios

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// key is what is locked.
const key = "orders:42"

const (
	watched  = 3 * time.Second // a call that lasts longer is freed from what it waits for
	patience = 2 * time.Second // of contexts, where a library would wait for ever
)

// errStuck is what calls return that did not end when everything was well again.
var errStuck = errors.New("a call did not return after all faults had ended")

// Fact is one thing that was measured: a time, a number, or what was said.
type Fact struct {
	Name  string   `json:"name"`
	Ms    *float64 `json:"ms,omitempty"`
	Cut   bool     `json:"cut,omitempty"`   // it would have lasted longer than Ms
	Count *int     `json:"count,omitempty"` // with Ms, how many for how long
	Text  string   `json:"text,omitempty"`
}

// String is the fact's value.
func (f Fact) String() string {
	switch {
	case f.Count != nil && f.Ms != nil:
		return fmt.Sprintf("%d (%s)", *f.Count, short(*f.Ms))
	case f.Ms != nil && f.Cut:
		return "> " + short(*f.Ms)
	case f.Ms != nil:
		return short(*f.Ms)
	case f.Count != nil:
		return fmt.Sprint(*f.Count)
	}
	return f.Text
}

func short(ms float64) string {
	switch {
	case ms < 0.1:
		return "< 0.1 ms"
	case ms < 10:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 1000:
		return fmt.Sprintf("%.0f ms", ms)
	default:
		return fmt.Sprintf("%.2f s", ms/1000)
	}
}

// play is one library in one scenario.
type play struct {
	context.Context
	*stage
	lib     library
	lockers []locker
	facts   []Fact
	stuck   bool
}

func (p *play) took(name string, d time.Duration) {
	ms := float64(d) / 1e6
	p.facts = append(p.facts, Fact{Name: name, Ms: &ms})
}

func (p *play) count(name string, n int) {
	p.facts = append(p.facts, Fact{Name: name, Count: &n})
}

func (p *play) said(name, text string) {
	p.facts = append(p.facts, Fact{Name: name, Text: text})
}

// answer notes what a call returned.
func (p *play) answer(name string, err error) {
	text := "ok"
	if err != nil {
		text = oneLine(err.Error())
	}
	p.said(name, text)
}

// oneLine is as much of a text as a table bears.
func oneLine(text string) string {
	const width = 140
	r := []rune(strings.Join(strings.Fields(text), " "))
	if len(r) > width {
		return string(r[:width-1]) + "…"
	}
	return string(r)
}

// open is a client on a network, which is closed at the end.
func (p *play) open(n network, t terms) (locker, error) {
	c, err := p.lib.open(n, t)
	if err != nil {
		return nil, err
	}
	p.lockers = append(p.lockers, c)
	return c, nil
}

// ready is such a client that knows all nodes and scripts.
func (p *play) ready(n network, t terms) (locker, error) {
	if t.ttl == 0 {
		t.ttl = 8 * time.Second // redsync's default
	}
	c, err := p.open(n, t)
	if err != nil {
		return nil, err
	}
	for range 2 {
		g, err := c.lock(p, "warm-up")
		if err != nil {
			return nil, fmt.Errorf("while all is well: %w", err)
		}
		pause(p, 50*time.Millisecond) // for the slower nodes
		if err := g.unlock(p); err != nil {
			return nil, fmt.Errorf("while all is well: %w", err)
		}
		pause(p, 50*time.Millisecond)
	}
	return c, nil
}

// end closes the clients, none of which may wait for a node that is away.
func (p *play) end() {
	p.mend()
	for _, c := range p.lockers {
		c.close()
	}
}

// timed notes how long a call takes. If it takes too long all faults are ended.
func timed[T any](p *play, name string, call func() (T, error)) (T, error) {
	return timedFor(p, name, watched, call)
}

func timedFor[T any](p *play, name string, most time.Duration, call func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	began := time.Now()
	go func() {
		v, err := call()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		p.took(name, time.Since(began))
		return r.v, r.err
	case <-time.After(most):
	}
	p.took(name, most)
	p.facts[len(p.facts)-1].Cut = true
	p.mend()
	select {
	case r := <-done:
		return r.v, r.err
	case <-p.Done():
		p.stuck = true
		var none T
		return none, errStuck
	}
}

// lock notes how long locking takes with so much patience, and what was said.
func (p *play) lock(c locker, patience time.Duration) (grant, error) {
	ctx, cancel := context.WithTimeout(p, patience)
	defer cancel()
	g, err := timed(p, "lock", func() (grant, error) { return c.lock(ctx, key) })
	p.answer("lock says", err)
	return g, err
}

func (p *play) try(c locker) (grant, error) {
	g, err := timed(p, "try", func() (grant, error) { return c.try(p, key) })
	p.answer("try says", err)
	return g, err
}

func (p *play) unlock(g grant) {
	_, err := timed(p, "unlock", func() (struct{}, error) { return struct{}{}, g.unlock(p) })
	p.answer("unlock says", err)
}

// keysLeft notes how many keys of the lock are left after a while, and for how long.
func (p *play) keysLeft(after time.Duration) {
	pause(p, after)
	n, longest := p.left(p, p.lib.keys(key))
	p.count("keys left", n)
	if ms := float64(longest) / 1e6; n > 0 {
		p.facts[len(p.facts)-1].Ms = &ms
	}
}

// atOnce notes how many hold the lock now, and for how long they do so together.
func (p *play) atOnce(most time.Duration, grants ...grant) {
	holding := func() (n int) {
		for _, g := range grants {
			if g != nil && g.holds() {
				n++
			}
		}
		return n
	}
	n := holding()
	p.count("holders at once", n)
	began := time.Now()
	for holding() > 1 && time.Since(began) < most {
		pause(p, time.Millisecond)
	}
	if n > 1 {
		p.took("both hold for", time.Since(began))
		p.facts[len(p.facts)-1].Cut = holding() > 1
	}
}

// tryUntil tries again and again until it is granted; nil if it is not.
func (p *play) tryUntil(c locker, deadline time.Time) grant {
	for time.Now().Before(deadline) && p.Err() == nil {
		if g, err := c.try(p, key); err == nil {
			return g
		}
		pause(p, 10*time.Millisecond)
	}
	return nil
}

// ours tells commands that concern the lock's key.
func (p *play) ours(which func([]string) bool) func([]string) bool {
	keys := p.lib.keys(key)
	return func(args []string) bool {
		return which(args) && slices.ContainsFunc(args, func(a string) bool { return slices.Contains(keys, a) })
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// ended is a context that is over.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
