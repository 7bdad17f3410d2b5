package docs

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// maxColumns is where Markdown prose wraps.
const maxColumns = 120

// TestProseWraps exempts tables, code blocks, links and what make writes.
func TestProseWraps(t *testing.T) {
	for _, file := range files(t, ".md") {
		code, generated := false, false
		for i, line := range strings.Split(read(t, file), "\n") {
			switch {
			case strings.HasPrefix(line, "```"):
				code = !code
			case strings.HasPrefix(line, "<!-- make "):
				generated = true
			case strings.HasPrefix(line, "<!-- end"):
				generated = false
			}
			exempt := code || generated || strings.HasPrefix(line, "|") || strings.HasPrefix(line, "    ") || strings.Contains(line, "](")
			if n := utf8.RuneCountInString(line); n > maxColumns && !exempt {
				t.Errorf("%s:%d: %d columns, at most %d", file, i+1, n, maxColumns)
			}
		}
	}
}
