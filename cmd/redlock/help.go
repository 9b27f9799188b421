package main

import (
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/quorumlock/redlock/cmd/redlock/internal/web"
)

// Once: the functions of templates are cobra's, for all commands of the process.
func init() { cobra.AddTemplateFunc("optional", optional) }

// fitHelp makes help fit a terminal of the usual width: cobra wraps nothing by itself.
func fitHelp(root *cobra.Command) {
	usage := root.UsageTemplate()
	for _, flags := range []string{".LocalFlags.FlagUsages", ".InheritedFlags.FlagUsages"} {
		usage = strings.ReplaceAll(usage, flags+" ", flags+"Wrapped 80 | optional ")
	}
	root.SetUsageTemplate(usage)
	for _, c := range append(root.Commands(), root) {
		c.Long = reflow(c.Long, plainWidth-1)
	}
}

// optional shows a flag whose value is optional in the only way in which it takes one.
func optional(usages string) string {
	was, is := "--web host:port[=\""+web.Loopback+"\"]", "--web[=host:port]"
	return strings.ReplaceAll(usages, was, is+strings.Repeat(" ", len(was)-len(is)))
}

// reflow breaks the lines of paragraphs anew. Indented lines stay as they are, and so do
// empty ones.
func reflow(text string, width int) string {
	var out []string
	open := false // the last line of out goes on
	for line := range strings.SplitSeq(text, "\n") {
		if line == "" || line[0] == ' ' {
			out, open = append(out, line), false
			continue
		}
		for _, word := range strings.Fields(line) {
			last := len(out) - 1
			if open && utf8.RuneCountInString(out[last])+1+utf8.RuneCountInString(word) <= width {
				out[last] += " " + word
			} else {
				out, open = append(out, word), true
			}
		}
	}
	return strings.Join(out, "\n")
}
