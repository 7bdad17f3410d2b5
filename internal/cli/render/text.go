package render

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Clean makes text from outside safe to show on one line of a terminal. It escapes control
// characters, line ends and bytes that aren't UTF-8, so that a name or a message can neither move
// the cursor nor fake a row.
func Clean(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return !visible(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		if visible(r) {
			b.WriteRune(r)
			continue
		}
		_, size := utf8.DecodeRuneInString(s[i:])
		quoted := strconv.QuoteToASCII(s[i : i+size])
		b.WriteString(quoted[1 : len(quoted)-1])
	}
	return b.String()
}

// CleanJSON escapes the control characters in a JSON document that JSON allows as they are: DEL and
// C1, which terminals obey, and those that turn the direction of text. The document means the same.
func CleanJSON(data []byte) []byte {
	if bytes.IndexFunc(data, harmful) < 0 {
		return data
	}
	var b bytes.Buffer
	for _, r := range string(data) {
		if harmful(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.Bytes()
}

// harmful reports whether a character of a JSON document may not reach a terminal. Outside of
// strings, JSON has none but ASCII.
func harmful(r rune) bool { return r >= 0x7f && r <= 0xffff && unicode.In(r, unicode.Cc, unicode.Cf) }

// LogLine makes a line that a container has written safe to show on a terminal. Colours stay, and
// end with the line. What else would move the cursor, change the terminal or make it answer is
// escaped.
func LogLine(s string) string {
	var b strings.Builder
	coloured := false
	for s = strings.TrimSuffix(s, "\r"); s != ""; {
		end := strings.IndexAny(s, "\t\x1b")
		if end < 0 {
			end = len(s)
		}
		b.WriteString(Clean(s[:end]))
		s = s[end:]
		switch colour := colourForm.FindString(s); {
		case s == "":
		case colour != "":
			b.WriteString(colour)
			coloured = true
			s = s[len(colour):]
		case s[0] == '\t':
			b.WriteByte('\t')
			s = s[1:]
		default:
			b.WriteString(Clean(s[:1]))
			s = s[1:]
		}
	}
	if coloured {
		b.WriteString("\x1b[0m")
	}
	return b.String()
}

// colourForm is the sequence SGR of ECMA-48 at the beginning of a text.
var colourForm = regexp.MustCompile(`^\x1b\[[0-9;:]{0,40}m`)

func visible(r rune) bool { return r != utf8.RuneError && unicode.IsPrint(r) }

// OneLine cleans a message and joins its lines: with a semicolon, or with a space after a line that
// ends in a colon.
func OneLine(s string) string {
	var b strings.Builder
	last := ""
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		switch {
		case last == "":
		case strings.HasSuffix(last, ":"):
			b.WriteString(" ")
		default:
			b.WriteString("; ")
		}
		b.WriteString(Clean(line))
		last = line
	}
	return b.String()
}

// Width returns the number of columns that s takes, without colour sequences. Every character
// counts as one column, which holds for the text that Husk shows.
func Width(s string) int {
	n := 0
	for len(s) > 0 {
		seq, rest := next(s)
		if seq[0] != '\x1b' {
			n++
		}
		s = rest
	}
	return n
}

// Cut shortens s to width columns. Colour sequences after the cut are kept, so that colours are
// switched off again.
func Cut(s string, width int) string {
	if len(s) <= width {
		return s
	}
	var b strings.Builder
	for n := 0; len(s) > 0; {
		seq, rest := next(s)
		switch {
		case seq[0] == '\x1b':
			b.WriteString(seq)
		case n < width:
			b.WriteString(seq)
			n++
		}
		s = rest
	}
	return b.String()
}

// next splits off the first character or colour sequence of s.
func next(s string) (first, rest string) {
	if strings.HasPrefix(s, "\x1b[") {
		if end := strings.IndexByte(s, 'm'); end > 0 {
			return s[:end+1], s[end+1:]
		}
	}
	_, size := utf8.DecodeRuneInString(s)
	return s[:size], s[size:]
}

// Pad fills s with spaces up to width columns.
func Pad(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-Width(s)))
}
