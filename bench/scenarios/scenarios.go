// Package scenarios plays failures from docs/safety-tests.md to redlock, redsync
// and rueidislock alike, on real servers behind proxies that break connections, and
// notes what each of them does.
package scenarios

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/quorumlock/redlock/internal/testing/realredis"
)

// limit is what one library may take in one scenario, starting and ending of servers
// included. Calls that last are cut long before it.
const limit = 10 * time.Second

// Scenario is a failure that can be played. Its number is that of docs/safety-tests.md.
type Scenario struct {
	Number int
	Title  string

	nodes  int
	opts   []realredis.Option
	shim   bool              // servers are under a clock that can be set
	skip   map[string]string // libraries for which it says nothing, and why
	script func(*play) error
}

// Result is what a library did in a scenario.
type Result struct {
	Number  int     `json:"scenario"`
	Title   string  `json:"title"`
	Library string  `json:"library"`
	Facts   []Fact  `json:"facts,omitempty"`
	Skipped string  `json:"skipped,omitempty"` // why it was not played
	Error   string  `json:"error,omitempty"`   // why it was not played to its end
	Seconds float64 `json:"seconds"`
}

// All are the scenarios, by number.
func All() []Scenario { return slices.Clone(all) }

// Find returns the scenarios of these numbers, all for none, or an error that names those
// that there are not.
func Find(numbers []int) (found []Scenario, err error) {
	if len(numbers) == 0 {
		return All(), nil
	}
	for _, n := range numbers {
		i := slices.IndexFunc(all, func(s Scenario) bool { return s.Number == n })
		if i < 0 {
			return nil, fmt.Errorf("scenario %d cannot be played; see the list for those that can", n)
		}
		found = append(found, all[i])
	}
	return found, nil
}

// Libraries are the names of the libraries that are compared.
func Libraries() (names []string) {
	for _, l := range libraries {
		names = append(names, l.name)
	}
	return names
}

// Play plays the scenario to the libraries of these names, all for none, each on new
// servers. It takes up to ten seconds for each; ctx ends it early.
func (s Scenario) Play(ctx context.Context, names ...string) (results []Result) {
	for _, l := range libraries {
		if len(names) > 0 && !slices.Contains(names, l.name) {
			continue
		}
		r := Result{Number: s.Number, Title: s.Title, Library: l.name, Skipped: s.skip[l.name]}
		if r.Skipped == "" {
			began := time.Now()
			var err error
			if r.Facts, err = s.playTo(ctx, l); err != nil {
				r.Error = err.Error()
			}
			r.Seconds = time.Since(began).Seconds()
		}
		results = append(results, r)
	}
	return results
}

func (s Scenario) playTo(ctx context.Context, l library) ([]Fact, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	st, err := newStage(ctx, s)
	if err != nil {
		return nil, err
	}
	defer st.close()
	p := &play{Context: ctx, stage: st, lib: l}
	defer p.end()
	if err := s.script(p); err != nil {
		return p.facts, err
	}
	if p.stuck {
		return p.facts, errStuck
	}
	return p.facts, ctx.Err()
}
