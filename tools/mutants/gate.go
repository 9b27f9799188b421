package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// mutant is one fault: a piece of the code's text, replaced by another.
type mutant struct {
	name string
	file string // below the module's root, with slashes
	// old occurs exactly once in the file, so that it is clear what is broken, and stays
	// clear when the code changes.
	old, new string
	// mark is in a comment at the end of the line that new replaces, as in "// mutant: mark", where there is no old: such
	// a mutant stays when its line is worded in another way.
	mark string
	// at is where old stands, in bytes, if it is generated and may occur more than once.
	at  int
	why string // it is wrong
	// twin is the same fault in the simulation's servers, which have the scripts in Go.
	twin edit
	// args are further arguments of the test binary for this mutant. They come last, so
	// they may replace the usual ones.
	args string
	// in is the folder of the package whose test binary it is, with slashes, and gets args alone; empty: the gate's.
	in string
	// equivalent says why no test can see the fault. It is listed so that nobody tries
	// again, and never run.
	equivalent string
	// open says since when no test sees the fault, though one should. It is listed, run by its name
	// only, and to be settled: by a test, or because what it breaks can go.
	open string
}

// twinFile has the scripts in Go, but for those of locks that several hold.
const twinFile, sharedTwinFile = "internal/testing/fakenode/fakenode.go", "internal/testing/fakenode/share.go"

// twinFileOf is where the twin of a script is.
func twinFileOf(script string) string {
	if strings.HasPrefix(filepath.Base(script), "shared") {
		return sharedTwinFile
	}
	return twinFile
}

// edit replaces a text that occurs once in a file.
type edit struct{ old, new string }

// apply returns the broken text of the mutant's file.
func (m mutant) apply(text string) (string, error) {
	if m.at > 0 {
		return text[:m.at] + m.new + text[m.at+len(m.old):], nil
	}
	if m.mark != "" {
		return m.replaceMarked(text)
	}
	if n := strings.Count(text, m.old); n != 1 || m.old == m.new {
		return "", fmt.Errorf("mutant %s: its old text is %d times in %s, must be once and differ from the new: %q", m.name, n, m.file, m.old)
	}
	return strings.Replace(text, m.old, m.new, 1), nil
}

// replaceMarked returns the text with new in place of the code of the marked line.
func (m mutant) replaceMarked(text string) (string, error) {
	lines := regexp.MustCompile(`(?m)^(\s*)(\S.*\S)(\s+(?://|--) mutant: `+regexp.QuoteMeta(m.mark)+`)$`).FindAllStringSubmatchIndex(text, -1)
	if len(lines) != 1 || m.old != "" {
		return "", fmt.Errorf("mutant %s: %d lines of %s have the mark %q, must be one, and there be no old text", m.name, len(lines), m.file, m.mark)
	}
	return text[:lines[0][4]] + m.new + text[lines[0][5]:], nil
}

// verdict is what became of a mutant, as it is printed.
type verdict string

const (
	killed     verdict = "killed"
	equivalent verdict = "equivalent"
	unsettled  verdict = "OPEN"
	survived   verdict = "SURVIVED"
	undecided  verdict = "TIME LIMIT" // a slow machine must not look like a test that sees
	notBuilt   verdict = "NOT BUILT"
	passed     verdict = "passed" // the sound code
)

// result is what became of one run of the test.
type result struct {
	verdict verdict
	by      string // what says so
	took    time.Duration
}

// gate runs a test against mutants of the package in dir.
type gate struct {
	dir      string
	in       string   // the folder of the package whose test runs, with slashes
	args     []string // of its test binary
	limit    time.Duration
	parallel int
	// oneSided: twins stay sound, so that scripts and simulation differ.
	oneSided bool
	// uncontrolled: the sound code is not run first.
	uncontrolled bool
	// named: the mutants were picked by name, so those that are open are run as well.
	named   bool
	outputs string // a folder for what the test printed, a file per mutant; or empty
	out     io.Writer
}

// run prints what becomes of each mutant, in their order, and returns an error unless all
// are killed, equivalent or known to be open, and the sound code passes.
func (g *gate) run(ctx context.Context, mutants []mutant) error {
	if len(mutants) == 0 {
		return errors.New("no mutant has such a name")
	}
	tmp, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if !g.uncontrolled {
		if err := g.control(ctx, tmp, mutants); err != nil {
			return err
		}
	}

	results := make([]chan result, len(mutants))
	next := make(chan int, len(mutants))
	for i := range mutants {
		results[i] = make(chan result, 1)
		next <- i
	}
	close(next)
	for range g.parallel {
		go func() {
			for i := range next {
				results[i] <- g.try(ctx, filepath.Join(tmp, mutants[i].name), mutants[i])
			}
		}()
	}
	count := make(map[verdict]int)
	for i, m := range mutants {
		r := <-results[i]
		if err := ctx.Err(); err != nil {
			return err
		}
		count[r.verdict]++
		g.print(m.name, r)
		if r.verdict == survived {
			fmt.Fprintf(g.out, "\t%s: %s\n", m.file, m.why)
		}
	}
	fmt.Fprintf(g.out, "%d mutants: %d killed, %d equivalent, %d open\n", len(mutants), count[killed], count[equivalent], count[unsettled])
	if bad := len(mutants) - count[killed] - count[equivalent] - count[unsettled]; bad > 0 {
		return fmt.Errorf("%d of %d mutants were not killed: %d survived, %d reached the time limit, %d were not built",
			bad, len(mutants), count[survived], count[undecided], count[notBuilt])
	}
	return nil
}

func (g *gate) print(name string, r result) {
	fmt.Fprintf(g.out, "%-46s %-10s %6.1fs  %s\n", name, r.verdict, r.took.Seconds(), r.by)
}

// control sees to it that the sound code passes, whichever arguments the mutants have:
// otherwise they would all look killed.
func (g *gate) control(ctx context.Context, tmp string, mutants []mutant) error {
	var done, built []string
	for _, m := range mutants {
		in, args := g.runs(m)
		if g.known(m).verdict != "" || slices.Contains(done, m.in+" "+m.args) {
			continue
		}
		done = append(done, m.in+" "+m.args)
		bin := filepath.Join(tmp, strings.ReplaceAll("sound/"+in, "/", "_")+".test")
		if !slices.Contains(built, in) {
			if text, err := g.build(ctx, bin, in, nil); err != nil {
				return fmt.Errorf("the sound code: %w\n%s", err, text)
			}
			built = append(built, in)
		}
		r, text := g.test(ctx, bin, in, args)
		if r.verdict == survived {
			r.verdict = passed
		}
		g.print(strings.TrimSpace("(sound code) "+m.args), r)
		switch {
		case r.verdict != passed:
			return fmt.Errorf("the sound code must pass:\n%s", text)
		case strings.Contains(text, "no tests to run"):
			return fmt.Errorf("there is no such test: %s %s", strings.Join(g.args, " "), m.args)
		}
	}
	return nil
}

// runs is the package whose test sees a mutant, and the arguments of its binary.
func (g *gate) runs(m mutant) (in string, args []string) {
	if in, args = m.in, strings.Fields(m.args); in == "" {
		in, args = g.in, append(slices.Clone(g.args), args...)
	}
	return in, args
}

// known is what is said of a mutant that is not run; its verdict is empty for the others.
func (g *gate) known(m mutant) (r result) {
	switch {
	case m.equivalent != "":
		return result{verdict: equivalent, by: m.equivalent}
	case m.open != "" && !g.named:
		return result{verdict: unsettled, by: m.open}
	default:
		return r
	}
}

// try builds and tests a mutant in a folder of its own.
func (g *gate) try(ctx context.Context, folder string, m mutant) result {
	if r := g.known(m); r.verdict != "" {
		return r
	}
	start := time.Now()
	bad := func(err error) result {
		return result{verdict: notBuilt, by: err.Error(), took: time.Since(start)}
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		return bad(err)
	}
	defer os.RemoveAll(folder) // a test binary is large
	replace, bin := make(map[string]string), filepath.Join(folder, "mutant.test")
	faults := []mutant{m}
	if m.twin != (edit{}) && !g.oneSided {
		faults = append(faults, mutant{name: m.name, file: twinFileOf(m.file), old: m.twin.old, new: m.twin.new})
	}
	for _, f := range faults {
		path, err := filepath.Abs(filepath.Join(g.dir, filepath.FromSlash(f.file)))
		if err != nil {
			return bad(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return bad(err)
		}
		broken, err := f.apply(string(text))
		if err != nil {
			return bad(err)
		}
		source := filepath.Join(folder, filepath.Base(path))
		if err := os.WriteFile(source, []byte(broken), 0o600); err != nil {
			return bad(err)
		}
		replace[path] = source
	}
	in, args := g.runs(m)
	if g.oneSided { // its own arguments may be of a test that sees only the twin
		in, args = g.in, g.args
	}
	if text, err := g.build(ctx, bin, in, replace); err != nil {
		return bad(fmt.Errorf("%w: %s", err, firstFailure(text)))
	}
	r, text := g.test(ctx, bin, in, args)
	r.took = time.Since(start)
	if g.outputs != "" {
		if err := os.WriteFile(filepath.Join(g.outputs, m.name+".txt"), []byte(text), 0o600); err != nil {
			return bad(err)
		}
	}
	return r
}

// build makes the test binary of the package in a folder, with other files in place of some.
func (g *gate) build(ctx context.Context, bin, in string, replace map[string]string) (text string, err error) {
	overlay := bin + ".json"
	content, err := json.Marshal(map[string]any{"Replace": replace})
	if err = errors.Join(err, os.WriteFile(overlay, content, 0o600)); err != nil {
		return "", err
	}
	// Nothing inlined and no symbols: that takes two thirds of the time to build, and most
	// tests end as soon as they have begun.
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-tags=invariants", "-gcflags=-l", "-ldflags=-s", "-o", bin, "-overlay", overlay, "./"+in)
	cmd.Dir = g.dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// test runs a test binary.
func (g *gate) test(ctx context.Context, bin, in string, args []string) (r result, text string) {
	start := time.Now()
	args = append([]string{"-test.failfast", "-test.timeout=" + g.limit.String()}, args...)
	// The binary ends itself, and tells where it hung. This is for one that cannot.
	ctx, cancel := context.WithTimeout(ctx, g.limit+10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Dir = filepath.Join(g.dir, filepath.FromSlash(in))
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	text = string(out)
	r = result{verdict: survived, took: time.Since(start)}
	switch {
	case ctx.Err() != nil || strings.Contains(text, "panic: test timed out after"):
		r.verdict, r.by = undecided, "it ran for "+r.took.Round(time.Second).String()
	case err != nil:
		r.verdict, r.by = killed, firstFailure(text)
		if seed := seedLine.FindStringSubmatch(text); seed != nil && !seedLine.MatchString(r.by) {
			r.by = "seed " + seed[1] + ": " + r.by
		}
	}
	return r, text
}

var (
	seedLine = regexp.MustCompile(`\bseed[ =:]+(\d+)`)
	// A line of a test's log, one of testify's explanations, a panic, a compiler's error.
	logged    = regexp.MustCompile(`^\s+(\w+_test\.go:\d+: .*)`)
	explained = regexp.MustCompile(`^\s+Error: *\t(.+)`)
	crashed   = regexp.MustCompile(`^((?:panic|fatal error): .+|(?:\S*/)?\w+\.go:\d+:\d+: .+)`)
)

// firstFailure is where the first line of an output that says what is wrong says it, and
// what; the first line if none does.
func firstFailure(text string) string {
	lines := strings.Split(text, "\n")
	where := ""
	for i, line := range lines {
		if m := crashed.FindStringSubmatch(line); m != nil {
			return shortened(m[1])
		}
		if m := logged.FindStringSubmatch(line); m != nil {
			if where = strings.TrimSpace(m[1]); !strings.HasSuffix(where, ":") {
				return shortened(where)
			}
		}
		if m := explained.FindStringSubmatch(line); m != nil {
			if m[1] = strings.TrimSpace(m[1]); strings.HasSuffix(m[1], ":") { // what differs is in the two lines below
				m[1] += " " + strings.Join(lines[i+1:min(i+3, len(lines))], " ")
			}
			return shortened(where + " " + m[1])
		}
	}
	return shortened(lines[0])
}

func shortened(s string) string {
	const most = 160
	if s = strings.Join(strings.Fields(s), " "); len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}
