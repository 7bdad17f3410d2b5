package render

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestClean(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                  "",
		"plain words":       "plain words",
		"größe ━ 漢字":        "größe ━ 漢字",
		"a\nb\tc\rd":        `a\nb\tc\rd`,
		"\x1b[2J\x07\x00":   `\x1b[2J\a\x00`,
		"bad \xff utf8":     `bad \xff utf8`,
		"c1 \u009b31m":      `c1 \u009b31m`,
		"bidi \u202egnp":    `bidi \u202egnp`,
		"zero\u200bwidth":   `zero\u200bwidth`,
		`quotes " and \ so`: `quotes " and \ so`,
	} {
		if got := Clean(in); got != want {
			t.Errorf("Clean(%q) = %s, want %s", in, got, want)
		}
	}
}

func TestCleanJSON(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"größe": "漢字\u001b😀"}`:           `{"größe": "漢字\u001b😀"}`,
		"[\"\u009b31m\x7f \u202egnp\", 1]": `["\u009b31m\u007f \u202egnp", 1]`,
	} {
		got := CleanJSON([]byte(in))
		var before, after any
		if err := errors.Join(json.Unmarshal([]byte(in), &before), json.Unmarshal(got, &after)); err != nil || string(got) != want || !reflect.DeepEqual(before, after) {
			t.Errorf("CleanJSON(%q) = %q, %v, want %q", in, got, err, want)
		}
	}
}

func TestLogLine(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                               "",
		"a\tb größe":                     "a\tb größe",
		"of a terminal\r":                "of a terminal",
		"\x1b[1;31mred\x1b[m.":           "\x1b[1;31mred\x1b[m.\x1b[0m",
		"\x1b[38:2:1:2:3mred":            "\x1b[38:2:1:2:3mred\x1b[0m",
		"\x1b[2J\x1b[1;1Hfake":           `\x1b[2J\x1b[1;1Hfake`,
		"\x1b]52;c;cm0gLXJm\a":           `\x1b]52;c;cm0gLXJm\a`,
		"\x1b]0;title\x1b\\\x1b[21t":     `\x1b]0;title\x1b\\x1b[21t`,
		"over\rwritten\x08\x1b":          `over\rwritten\b\x1b`,
		"\x1b[31":                        `\x1b[31`,
		"\u009b2J c1 \x9b2J bidi \u202e": `\u009b2J c1 \x9b2J bidi \u202e`,
	} {
		if got := LogLine(in); got != want {
			t.Errorf("LogLine(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestOneLine(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                          "",
		"one":                       "one",
		"\n one \n\n  two\t\n":      "one; two",
		"found:\n  this\nand that":  "found: this; and that",
		"with\x1b[31m colour\nmore": `with\x1b[31m colour; more`,
	} {
		if got := OneLine(in); got != want {
			t.Errorf("OneLine(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestCut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in    string
		width int
		want  string
	}{
		{"", 3, ""}, {"abc", 3, "abc"}, {"abcd", 3, "abc"}, {"abcd", 0, ""},
		{"━━━━", 2, "━━"}, {"━━", 2, "━━"},
		{"\x1b[31mabcd\x1b[0m", 2, "\x1b[31mab\x1b[0m"},
		{"\x1b[31mab\x1b[0m", 2, "\x1b[31mab\x1b[0m"},
	} {
		got := Cut(c.in, c.width)
		if got != c.want {
			t.Errorf("Cut(%q, %d) = %q, want %q", c.in, c.width, got, c.want)
		}
		if Width(got) > c.width {
			t.Errorf("Cut(%q, %d) has width %d", c.in, c.width, Width(got))
		}
	}
	if got := Pad("━", 3); got != "━  " {
		t.Errorf("Pad = %q", got)
	}
	if got := Pad("long", 3); got != "long" {
		t.Errorf("Pad = %q", got)
	}
}

// Arbitrary text is shown as one line of visible characters, and never exceeds the width.
func FuzzText(f *testing.F) {
	f.Add("plain", 3)
	f.Add("a\x1b[31mb\n\xff\u202e", 2)
	f.Add("\x1b[", 0)
	f.Fuzz(func(t *testing.T, s string, width int) {
		for _, shown := range []string{Clean(s), OneLine(s)} {
			if !utf8.ValidString(shown) || strings.ContainsFunc(shown, func(r rune) bool { return r < ' ' || r == 0x7f }) {
				t.Errorf("%q of %q", shown, s)
			}
		}
		if width = width & 0xff; Width(Cut(s, width)) > width {
			t.Errorf("Cut(%q, %d) = %q", s, width, Cut(s, width))
		}
	})
}
