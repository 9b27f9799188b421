package scenarios

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestScenariosAreInOrderAndComplete(t *testing.T) {
	last := 0
	for _, s := range All() {
		assert.Greater(t, s.Number, last, "by number, each once")
		assert.LessOrEqual(t, s.Number, 94)
		assert.NotEmpty(t, s.Title)
		assert.NotZero(t, s.nodes)
		assert.NotNil(t, s.script)
		for name := range s.skip {
			assert.Contains(t, Libraries(), name)
		}
		last = s.Number
	}
}

func TestFind(t *testing.T) {
	found, err := Find(nil)
	require.NoError(t, err)
	assert.Len(t, found, len(all))
	found, err = Find([]int{26, 18})
	require.NoError(t, err)
	assert.Equal(t, []int{26, 18}, []int{found[0].Number, found[1].Number})
	_, err = Find([]int{18, 3})
	assert.ErrorContains(t, err, "scenario 3")
}

func TestFactsAreReadable(t *testing.T) {
	p := &play{}
	p.took("a", 40*time.Microsecond)
	p.took("b", 4200*time.Microsecond)
	p.took("c", 421*time.Millisecond)
	p.took("d", 4210*time.Millisecond)
	p.count("e", 0)
	p.said("f", "x")
	p.answer("g", nil)
	p.answer("h", errors.Join(errors.New("one"), errors.New(strings.Repeat("two", 100))))
	var values []string
	for _, f := range p.facts {
		values = append(values, f.String())
	}
	assert.Equal(t, []string{"< 0.1 ms", "4.2 ms", "421 ms", "4.21 s", "0", "x", "ok"}, values[:7])
	assert.True(t, strings.HasPrefix(values[7], "one twotwo"), values[7])
	assert.Len(t, []rune(values[7]), 140)
	ms, n := 7400.0, 2
	assert.Equal(t, "2 (7.40 s)", Fact{Ms: &ms, Count: &n}.String())
	assert.Equal(t, "> 7.40 s", Fact{Ms: &ms, Cut: true}.String())
}

// A call that does not return is cut, freed by ending all faults, and its result counts.
func TestTimedEndsFaults(t *testing.T) {
	p := &play{Context: t.Context(), stage: &stage{}}
	v, err := timedFor(p, "quick", time.Minute, func() (int, error) { return 1, nil })
	require.NoError(t, err)
	assert.Equal(t, 1, v)
	assert.False(t, p.facts[0].Cut)

	free := make(chan struct{})
	time.AfterFunc(50*time.Millisecond, func() { close(free) })
	v, err = timedFor(p, "slow", 5*time.Millisecond, func() (int, error) { <-free; return 2, nil })
	require.NoError(t, err)
	assert.Equal(t, 2, v)
	assert.True(t, p.facts[1].Cut)
	assert.Equal(t, 5., *p.facts[1].Ms)
	assert.False(t, p.stuck)

	never := make(chan struct{})
	defer close(never)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	p.Context = ctx
	_, err = timedFor(p, "stuck", 5*time.Millisecond, func() (int, error) { <-never; return 0, nil })
	assert.ErrorIs(t, err, errStuck)
	assert.True(t, p.stuck)
}

func TestAtOnceCountsHolders(t *testing.T) {
	p := &play{Context: t.Context()}
	var ended held
	ended.over.Store(true)
	p.atOnce(time.Second, &held{}, nil, &ended)
	require.Len(t, p.facts, 1)
	assert.Equal(t, 1, *p.facts[0].Count)

	p.facts = nil
	p.atOnce(10*time.Millisecond, &held{}, &held{})
	require.Len(t, p.facts, 2)
	assert.Equal(t, 2, *p.facts[0].Count)
	assert.True(t, p.facts[1].Cut, "they still do")

	p.facts = nil
	var short held
	time.AfterFunc(20*time.Millisecond, func() { short.over.Store(true) })
	p.atOnce(time.Minute, &held{}, &short)
	assert.Equal(t, 2, *p.facts[0].Count)
	assert.False(t, p.facts[1].Cut)
}

type held struct{ over atomic.Bool }

func (h *held) unlock(context.Context) error { return nil }
func (h *held) holds() bool                  { return !h.over.Load() }

func TestRaise(t *testing.T) {
	var v atomic.Int64
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() { raise(&v, int64(i)) })
	}
	all.Wait()
	assert.EqualValues(t, 99, v.Load())
}

func TestPrint(t *testing.T) {
	ms, n := 1.5, 3
	results := []Result{
		{Number: 7, Title: "seven", Library: "a", Facts: []Fact{{Name: "lock", Ms: &ms}, {Name: "says", Text: "ok"}}},
		{Number: 7, Title: "seven", Library: "bb", Facts: []Fact{{Name: "lock", Ms: &ms, Cut: true}, {Name: "keys left", Count: &n}}, Error: "broke"},
		{Number: 7, Title: "seven", Library: "c", Skipped: "because"},
	}
	var out bytes.Buffer
	require.NoError(t, Print(&out, results))
	assert.Equal(t, `
7  seven
       lock       keys left
  a    1.5 ms     -
  bb   > 1.5 ms   3
  c    -          -
    a: says: ok
    bb: NOT FINISHED: broke
    c: not played: because
`, out.String())

	out.Reset()
	require.NoError(t, (&Report{Redis: "7", Results: results}).JSON(&out))
	var back Report
	require.NoError(t, json.Unmarshal(out.Bytes(), &back))
	assert.Equal(t, results, back.Results)

	out.Reset()
	require.NoError(t, Print(&out, nil))
	assert.Empty(t, out.String())
	List(&out)
	assert.Contains(t, out.String(), " 19  one of five nodes hangs")
}

func TestCommandsAreTold(t *testing.T) {
	value := strings.Repeat("0a", 16) + "@me"
	for _, c := range []struct {
		library            string
		args               []string
		acquires, releases bool
	}{
		{"redlock", []string{"SET", key, value, "NX", "PX", "1"}, true, false},
		{"redlock", []string{"EVALSHA", "sha", "1", key, value}, false, true},
		{"redlock", []string{"EVALSHA", "sha", "1", key, "{orders:42}:line", "0"}, false, false},
		{"redsync", []string{"set", key, "v", "px", "1", "nx"}, true, false},
		{"redsync", []string{"evalsha", "sha", "1", key, "v"}, false, true},
		{"rueidislock", []string{"EVALSHA", "sha", "1", key, "v", "1"}, true, false},
		{"rueidislock", []string{"EVALSHA", "sha", "1", key, "v"}, false, true},
	} {
		for _, l := range libraries {
			if l.name == c.library {
				assert.Equal(t, c.acquires, l.acquires(c.args), "%v", c.args)
				assert.Equal(t, c.releases, l.releases(c.args), "%v", c.args)
			}
		}
	}
}
