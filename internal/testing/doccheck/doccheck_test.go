package doccheck_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/quorumlock/redlock/internal/testing/doccheck"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func page(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "page.md")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestCompile(t *testing.T) {
	c := doccheck.Compiler{Dir: ".", Imports: []string{"fmt", "str strings"}, Scope: "type thing int", Params: "n thing"}
	require.NoError(t, c.Load())
	for name, x := range map[string]struct{ code, wrong string }{
		"statements":               {"m := n + 1\nfmt.Println(str.ToUpper(``))\n", ""},
		"statements that return":   {"return nil\n", ""},
		"declarations":             {"func f(t thing) { fmt.Println(t) }\n", ""},
		"a file":                   {"package p\n\nimport \"fmt\"\n\nfunc f() { fmt.Println() }\n", ""},
		"a file that imports more": {"// p is.\npackage p\n\nimport (\n\t\"fmt\"\n\t\"strings\"\n)\n\nfunc f() { fmt.Println() }\n", `"strings" imported and not used`},
		"no such name":             {"n++\nnobody()\n", "page.md:3: undefined: nobody"},
		"another type":             {"n = \"\"\n", "cannot use"},
		"no Go":                    {"n = = 1\n", "page.md:2:"},
		"not among the imports":    {"package p\n\nimport \"net/rpc\"\n\nvar _ rpc.Call\n", "net/rpc"},
	} {
		t.Run(name, func(t *testing.T) {
			blocks, err := doccheck.Blocks(page(t, "```go\n"+x.code+"```\n"))
			require.NoError(t, err)
			require.Len(t, blocks, 1)
			err = c.Compile(blocks[0])
			if x.wrong == "" {
				assert.NoError(t, err)
			} else {
				assert.ErrorContains(t, err, x.wrong)
			}
		})
	}
}

func TestBlocks(t *testing.T) {
	p := page(t, "one\n```go peers\na\n\nb\n```\ntwo\n```\nc\n```\n")
	blocks, err := doccheck.Blocks(p)
	require.NoError(t, err)
	assert.Equal(t, []doccheck.Block{{Page: p, Line: 3, Info: "go peers", Code: "a\n\nb\n"}, {Page: p, Line: 9, Code: "c\n"}}, blocks)
	_, err = doccheck.Blocks(page(t, "```go\na\n"))
	assert.ErrorContains(t, err, "no end")
}

func TestBrokenLinks(t *testing.T) {
	broken, err := doccheck.BrokenLinks(page(t, "# What's up, at 3 a.m.?\n"+
		"[a](page.md) [b](https://example.org/x) [c](#whats-up-at-3-am) [d](page.md#whats-up-at-3-am) [e](none.md) [f](#nothing)\n"+
		"<a id=\"named\"></a>\n## 名\n[g](#named) [h](#名)\n"))
	require.NoError(t, err)
	assert.Equal(t, []string{"none.md", "#nothing"}, broken)
}
