package archtest

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// maxCommentColumns is where comments wrap. Lines of code and preformatted text are exempt.
const maxCommentColumns = 100

func TestCommentsWrap(t *testing.T) {
	for _, tests := range []bool{false, true} {
		for _, files := range load(t, tests) {
			for _, f := range files {
				n := 0
				for line := range strings.Lines(f.raw) {
					n++
					line = strings.TrimSuffix(line, "\n")
					text, isComment := strings.CutPrefix(strings.TrimSpace(line), "// ")
					if isComment && !strings.HasPrefix(text, " ") && strings.Contains(text, " ") && utf8.RuneCountInString(line) > maxCommentColumns {
						t.Errorf("%s:%d: comment of %d columns, at most %d", f.path, n, utf8.RuneCountInString(line), maxCommentColumns)
					}
				}
			}
		}
	}
}
