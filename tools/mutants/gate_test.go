package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// toy is a module whose tests see that Add adds, and nothing else.
var toy = map[string]string{
	"go.mod": "module toy\n\ngo 1.26.0\n",
	"toy.go": `package toy

import _ "embed"

//go:embed word.txt
var word string

func Add(a, b int) int { return a + b }

func Sub(a, b int) int { return a - b }
`,
	"word.txt": "sound",
	"toy_test.go": `package toy

import (
	"flag"
	"testing"
)

var strict = flag.Bool("strict", false, "")

func TestAdd(t *testing.T) {
	if Add(1, 2) != 3 || word != "sound" {
		t.Fatal("seed 7: Add is broken, word is", word)
	}
	if *strict && Sub(3, 2) != 1 {
		t.Fatal("Sub is broken")
	}
}
`,
}

var (
	dies      = mutant{name: "dies", file: "toy.go", old: "a + b", new: "a - b"}
	diesInTxt = mutant{name: "dies-in-an-embedded-file", file: "word.txt", old: "sound", new: "broken"}
	lives     = mutant{name: "lives", file: "toy.go", old: "return a - b", new: "return a", why: "it does not subtract"}
	diesOnly  = mutant{name: "dies-only-with-arguments", file: "toy.go", old: "return a - b", new: "return a", args: "-strict"}
	same      = mutant{name: "same", file: "toy.go", old: "a + b", new: "b + a", equivalent: "sums commute"}
	known     = mutant{name: "known", file: "toy.go", old: "return a - b", new: "return a", open: "nothing subtracts"}
	hangs     = mutant{name: "hangs", file: "toy.go", old: "return a + b", new: "for {}"}
	nonsense  = mutant{name: "nonsense", file: "toy.go", old: "a + b", new: "a + c"}
	twice     = mutant{name: "twice", file: "toy.go", old: "a, b int", new: "b, a int"}
)

// newGate is a gate of the toy, and what it prints.
func newGate(t *testing.T, args ...string) (*gate, *strings.Builder) {
	t.Helper()
	t.Setenv("GOFLAGS", "")
	dir := t.TempDir()
	for name, text := range toy {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out := new(strings.Builder)
	return &gate{dir: dir, args: args, limit: time.Minute, parallel: 2, out: out}, out
}

// expect asserts that an error says what it should, and the table too, line by line.
func expect(t *testing.T, err error, want string, out *strings.Builder, lines ...string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("error %v, want none", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("error %v, want one that contains %q", err, want)
	}
	rest := out.String()
	for _, line := range lines {
		all := strings.Fields(line)
		for _, part := range all {
			i := strings.Index(rest, part)
			if i < 0 {
				t.Fatalf("no %q, or not in its place, in\n%s", part, out)
			}
			rest = rest[i+len(part):]
		}
	}
}

func TestAllMutantsKilled(t *testing.T) {
	g, out := newGate(t)
	g.outputs = t.TempDir()
	err := g.run(t.Context(), []mutant{dies, diesInTxt, diesOnly, same})
	expect(t, err, "", out,
		"(sound code) passed",
		"(sound code) -strict passed",
		"dies killed toy_test.go:12: seed 7: Add is broken",
		"dies-in-an-embedded-file killed word is broken",
		"dies-only-with-arguments killed Sub is broken",
		"same equivalent sums commute",
		"4 mutants: 3 killed, 1 equivalent",
	)
	for _, name := range []string{dies.name, diesInTxt.name, diesOnly.name} {
		if text, err := os.ReadFile(filepath.Join(g.outputs, name+".txt")); err != nil || !strings.Contains(string(text), "broken") {
			t.Errorf("what the test of %s printed: %q, %v", name, text, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(g.dir, "*.test")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	text, err := os.ReadFile(filepath.Join(g.dir, "toy.go"))
	if err != nil || string(text) != toy["toy.go"] {
		t.Errorf("the sound code was changed: %s", text)
	}
}

// A fault that is known to be seen by nothing does not fail the gate, unless it is asked for by name.
func TestMutantsThatAreOpen(t *testing.T) {
	g, out := newGate(t)
	expect(t, g.run(t.Context(), []mutant{dies, known}), "", out, "known OPEN nothing subtracts", "2 mutants: 1 killed, 0 equivalent, 1 open")
	g, out = newGate(t)
	g.named = true
	expect(t, g.run(t.Context(), []mutant{known}), "1 survived", out, "known SURVIVED")
}

func TestSurvivorFailsTheGate(t *testing.T) {
	g, out := newGate(t)
	err := g.run(t.Context(), []mutant{dies, lives})
	expect(t, err, "1 of 2 mutants were not killed: 1 survived", out,
		"dies killed", "lives SURVIVED", "toy.go: it does not subtract")
}

// Neither is a sign that the test sees anything.
func TestHangingAndUnbuiltMutantsFailTheGate(t *testing.T) {
	g, out := newGate(t)
	g.limit = time.Second
	err := g.run(t.Context(), []mutant{hangs, nonsense, twice})
	expect(t, err, "3 of 3 mutants were not killed: 0 survived, 1 reached the time limit, 2 were not built", out,
		"hangs TIME LIMIT", "nonsense NOT BUILT undefined: c", "twice NOT BUILT 2 times in toy.go")
}

func TestControlRun(t *testing.T) {
	for _, test := range []struct {
		name, change, args, want string
	}{
		{"sound code fails", "a - b", "", "the sound code must pass"},
		{"sound code does not build", "a + c", "", "undefined: c"},
		{"no such test", "a + b", "-test.run=TestNone", "there is no such test"},
		{"no such argument", "a + b", "-none", "flag provided but not defined"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g, out := newGate(t, strings.Fields(test.args)...)
			changed := strings.Replace(toy["toy.go"], "a + b", test.change, 1)
			if err := os.WriteFile(filepath.Join(g.dir, "toy.go"), []byte(changed), 0o600); err != nil {
				t.Fatal(err)
			}
			m := dies
			m.old = test.change
			m.new = "0"
			expect(t, g.run(t.Context(), []mutant{m}), test.want, out)
			if strings.Contains(out.String(), "killed") && strings.Contains(out.String(), "dies") {
				t.Errorf("a mutant was run:\n%s", out)
			}
		})
	}
}

func TestNoMutantOfThatName(t *testing.T) {
	g, out := newGate(t)
	expect(t, g.run(t.Context(), nil), "no mutant", out)
}

func TestApply(t *testing.T) {
	m := mutant{name: "m", file: "f", old: "a", new: "b"}
	for text, want := range map[string]string{"xay": "xby", "xy": "", "axa": ""} {
		got, err := m.apply(text)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("apply to %q: %q, %v", text, got, err)
		}
	}
	m.new = m.old
	if _, err := m.apply("a"); err == nil {
		t.Error("a mutant that changes nothing must be refused")
	}
}

func TestFirstFailure(t *testing.T) {
	for text, want := range map[string]string{
		"--- FAIL: TestSim (0.1s)\n    sim_test.go:9: seed 3: two holders\n": "sim_test.go:9: seed 3: two holders",
		"--- FAIL: TestX (0s)\n    x_test.go:5: \n        \tError Trace:\t/x_test.go:5\n        \tError:      \tNot equal: \n        \t            \texpected: 1\n        \t            \tactual  : 2\n": "x_test.go:5: Not equal: expected: 1 actual : 2",
		"=== RUN TestX\npanic: deadlock\n\ngoroutine 1": "panic: deadlock",
		"# toy\n./toy.go:3:4: undefined: c\n":           "./toy.go:3:4: undefined: c",
		"flag provided but not defined: -x\nUsage":      "flag provided but not defined: -x",
		"": "",
	} {
		if got := firstFailure(text); got != want {
			t.Errorf("of %q: %q, want %q", text, got, want)
		}
	}
}

func TestPartsMakeTheWhole(t *testing.T) {
	first, every, err := partOf("3/8")
	require.NoError(t, err)
	require.Equal(t, []int{3, 8}, []int{first, every})
	for _, bad := range []string{"", "3", "8/8", "-1/8", "0/0", "a/b"} {
		_, _, err := partOf(bad)
		require.ErrorContains(t, err, strconv.Quote(bad))
	}
}

func TestGeneratedMutants(t *testing.T) {
	g, out := newGate(t)
	all, err := generated(g.dir, "toy.go")
	if err != nil {
		t.Fatal(err)
	}
	err = g.run(t.Context(), all)
	expect(t, err, "1 of 2 mutants were not killed: 1 survived", out,
		"toy:8:35-swapped killed", "toy:10:35-swapped SURVIVED", "toy.go: - becomes +")
}

func TestMarkedMutantStaysWhenItsLineIsWordedInAnotherWay(t *testing.T) {
	m := mutant{name: "m", file: "toy.go", mark: "sum", new: "return a - b"}
	for _, line := range []string{"return a + b", "return b + a"} {
		broken, err := m.apply("\t" + line + " // mutant: sum\n")
		require.NoError(t, err)
		require.Equal(t, "\treturn a - b // mutant: sum\n", broken)
	}
	for _, text := range []string{"return a + b // mutant: sums\n", "a++ // mutant: sum\nb++ // mutant: sum\n"} {
		_, err := m.apply(text)
		require.Error(t, err)
	}
}
