// Package doccheck compiles the Go examples of Markdown pages and follows their links.
package doccheck

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/quorumlock/redlock/internal/testing/gotypes"
)

// Block is a fenced block of code on a page.
type Block struct {
	Page string // path of the file
	Line int    // of its first line of code
	Info string // what stands behind the opening fence: "go", "go peers", "sh"
	Code string
}

func (b Block) String() string { return fmt.Sprintf("%s:%d", b.Page, b.Line) }

// Blocks returns the fenced blocks of a page, in order.
func Blocks(page string) ([]Block, error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return nil, err
	}
	var all []Block
	open := false
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		bare := strings.TrimRight(line, " \n")
		switch {
		case !open && strings.HasPrefix(bare, "```"):
			open = true
			all = append(all, Block{Page: page, Line: n + 1, Info: strings.TrimSpace(bare[3:])})
		case open && bare == "```":
			open = false
		case open:
			all[len(all)-1].Code += line
		}
	}
	if open {
		return nil, fmt.Errorf("%s: a block of code has no end", page)
	}
	return all, nil
}

// Compiler type-checks examples. An example is a file of its own (it begins with
// "package"), a list of declarations, or statements, which may use what Scope declares
// and may leave variables unused.
type Compiler struct {
	// Dir is a folder of the module whose requirements the examples may import.
	Dir string
	// Imports are import declarations for examples that are no files of their own: a path, or a
	// name and a path. Examples use what they like of them.
	Imports []string
	// Scope is Go source after the imports: declarations that stand for the reader's own.
	Scope string
	// Params are parameters of the function around statements, as "ctx context.Context".
	Params string

	set      *token.FileSet
	packages types.Importer
}

// Load compiles what examples may import. It comes before Compile.
func (c *Compiler) Load() error {
	var paths []string
	for _, i := range c.Imports {
		f := strings.Fields(i)
		paths = append(paths, f[len(f)-1])
	}
	var err error
	c.set = token.NewFileSet()
	c.packages, err = gotypes.Importer(c.set, c.Dir, paths...)
	return err
}

// Compile reports what is wrong with an example.
func (c *Compiler) Compile(b Block) error {
	whole := strings.HasPrefix(strings.TrimSpace(stripComments(b.Code)), "package ")
	source := b.Code
	if !whole {
		source = c.wrap(b)
	}
	file, err := parser.ParseFile(c.set, b.Page, source, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	var wrong []error
	conf := types.Config{Importer: c.packages, Error: func(err error) {
		// A part of a program may leave unused what the rest would use.
		if e := (types.Error{}); !whole && errors.As(err, &e) && e.Soft {
			return
		}
		wrong = append(wrong, err)
	}}
	_, _ = conf.Check("example", c.set, []*ast.File{file}, nil)
	return errors.Join(wrong...)
}

// CompileAll compiles the blocks of the pages that a pattern matches which have an info string. It is an error if
// there are none.
func (c *Compiler) CompileAll(pages, info string) error {
	if err := c.Load(); err != nil {
		return err
	}
	paths, err := filepath.Glob(pages)
	wrong, found := []error{err}, false
	for _, page := range paths {
		blocks, err := Blocks(page)
		wrong = append(wrong, err)
		for _, b := range blocks {
			if b.Info == info {
				found = true
				wrong = append(wrong, c.Compile(b))
			}
		}
	}
	if !found {
		wrong = append(wrong, fmt.Errorf("no block of %s is %q", pages, info))
	}
	return errors.Join(wrong...)
}

func stripComments(code string) string {
	return regexp.MustCompile(`(?m)^//.*\n`).ReplaceAllString(code, "")
}

// wrap makes a file of a part of one, in which positions are those on the page.
func (c *Compiler) wrap(b Block) string {
	code := fmt.Sprintf("//line %s:%d\n%s", filepath.Base(b.Page), b.Line, b.Code)
	var s strings.Builder
	s.WriteString("package example\n")
	for _, i := range c.Imports {
		f := strings.Fields(i)
		f[len(f)-1] = fmt.Sprintf("%q", f[len(f)-1])
		fmt.Fprintf(&s, "import %s\n", strings.Join(f, " "))
	}
	s.WriteString(c.Scope)
	if _, err := parser.ParseFile(token.NewFileSet(), "", "package example\n"+b.Code, 0); err == nil {
		s.WriteString("\n" + code)
		return s.String()
	}
	// In a block of its own, so that "rl, err :=" declares what the parameters have too.
	fmt.Fprintf(&s, "\nfunc example(%s) error {\n{\n%s}\nreturn nil\n}\n", c.Params, code)
	return s.String()
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	named   = regexp.MustCompile(`<a id="([^"]+)"></a>`)
	odd     = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// BrokenLinks returns the relative links of a page that lead nowhere.
func BrokenLinks(page string) ([]string, error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return nil, err
	}
	var broken []string
	for _, m := range link.FindAllStringSubmatch(string(text), -1) {
		u, err := url.Parse(m[1])
		if err != nil || u.Scheme != "" || u.Host != "" {
			continue
		}
		target := page
		if u.Path != "" {
			target = filepath.Join(filepath.Dir(page), u.Path)
		}
		if _, err := os.Stat(target); err != nil {
			broken = append(broken, m[1])
			continue
		}
		if u.Fragment != "" && strings.HasSuffix(target, ".md") && !HasAnchor(target, u.Fragment) {
			broken = append(broken, m[1])
		}
	}
	return broken, nil
}

// HasAnchor reports whether a page has that anchor: by a heading, or by a name of its own.
func HasAnchor(page, anchor string) bool {
	text, err := os.ReadFile(page)
	if err != nil {
		return false
	}
	return slices.Contains(Anchors(string(text)), anchor) || slices.Contains(Names(string(text)), anchor)
}

// Anchors returns the anchors of a text's headings in order, made as GitHub does.
func Anchors(text string) (all []string) {
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		all = append(all, strings.ReplaceAll(strings.ToLower(odd.ReplaceAllString(m[1], "")), " ", "-"))
	}
	return all
}

// Names returns the anchors that a text sets by itself, <a id="name"></a>, in order: a translation
// has those of the original, so that a link may lead to either.
func Names(text string) (all []string) {
	for _, m := range named.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}
