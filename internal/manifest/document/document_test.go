package document

import (
	"errors"
	"strings"
	"testing"
)

// TestLineOfMistake checks that the reported line is the one to change, or that where what isn't
// closed begins.
func TestLineOfMistake(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		file string
		line int
	}{
		{"kind: Pod\nspec:\n  a: b\n c: d\n", 4},
		{"metadata:\n  name: a\n  labels:\n    a: b\n    c: d\n   e: f\nspec: x\n", 6},
		{"# one\n# two\n# three\n---\nkind: Pod\nmetadata:\n  name: x\n   foo: y\n", 8},
		{"a: b\nmetadata:\n  name: a\n  labels:\n    c: d\n  \"e\" f\n  g: h\n", 6},
		{"a: b\n---\n\n# x\nkind: \"abc\nx: y\n", 5},
		{"a: 'b\nc: d\ne: f\n", 1},
		{"a: ['b',\n 'c']\nkind: Pod\nmetadata: {name: web\nspec: {}\n", 4},
		{"a:\n- b\n\t- c\n", 3},
		{"a: b\nx: *nope\n", 2},
		{"a: \"\\q\"", 1},
	} {
		_, err := Read([]byte(c.file))
		if mistake, ok := errors.AsType[*SyntaxError](err); !ok || mistake.Line != c.line {
			t.Errorf("line %d is mistaken, but %#v is reported in\n%s", c.line, err, c.file)
		}
	}
	// The search is bounded.
	_, err := Read([]byte(strings.Repeat("a: b\n---\n", maxSearched/5) + "c: d: e\n"))
	if mistake, ok := errors.AsType[*SyntaxError](err); !ok || mistake.Line == 0 {
		t.Errorf("a large file: %v", err)
	}
}
