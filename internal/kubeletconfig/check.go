package kubeletconfig

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/document"
	"github.com/huskd/husk/internal/manifest/fields"
)

// checker checks that a document has only known fields, each once and of its type. It continues
// after a problem, to report all at once.
type checker struct {
	problems []manifest.Problem
	more     int
}

func (c *checker) add(line int, path, format string, args ...any) {
	if len(c.problems) == maxProblems {
		c.more++
		return
	}
	c.problems = append(c.problems, manifest.Problem{Line: line, Path: printable(path), Text: fmt.Sprintf(format, args...)})
}

// header checks that a document is a KubeletConfiguration.
func (c *checker) header(doc *document.Node) {
	if doc.Kind != document.Object {
		c.add(doc.Line, "", "must be a %s, not %s", kindName, doc.Kind)
		return
	}
	for _, h := range []struct{ name, want string }{{"apiVersion", apiVersion}, {"kind", kindName}} {
		switch v := doc.Get(h.name); {
		case v == nil:
			c.add(doc.Line, h.name, "missing: write %s", h.want)
		case v.Text != h.want || v.Kind != document.Text:
			c.add(v.Line, h.name, "%s is not %s", shown(v), h.want)
		}
	}
}

func (c *checker) object(n *document.Node, s *node, path string) {
	seen := map[string]int{}
	for _, f := range n.Fields {
		at := join(path, f.Key)
		if line, ok := seen[f.Key]; ok {
			c.add(f.Line, at, "set twice: also at line %d", line)
			continue
		}
		seen[f.Key] = f.Line
		switch inside := s.inside[f.Key]; {
		case inside == nil:
			c.add(f.Line, at, "unknown field%s", suggest(f.Key, s))
		case f.Value.Kind == document.Null:
		case inside.field != nil:
			c.field(f.Value, inside, at)
		case c.is(f.Value, document.Object, at):
			c.object(f.Value, inside, at)
		}
	}
}

// suggest returns the rest of the message about an unknown field.
func suggest(name string, s *node) string {
	if near := fields.Nearest(name, maps.Keys(s.inside)); near != "" {
		return "; did you mean " + near + "?"
	}
	for _, f := range fieldList {
		if strings.HasSuffix(f.path, "."+name) && !strings.Contains(f.path, "[]") {
			return "; did you mean " + f.path + "?"
		}
	}
	return " of " + apiVersion + ": remove it"
}

// is reports whether n has the wanted kind, and adds a problem if not.
func (c *checker) is(n *document.Node, want document.Kind, path string) bool {
	if n.Kind == want {
		return true
	}
	remedy := ""
	if want == document.Text && (n.Kind == document.Number || n.Kind == document.Boolean) {
		remedy = fmt.Sprintf(": quote it (%q)", n.Raw)
	}
	c.add(n.Line, path, "must be %s, not %s%s", want, n.Kind, remedy)
	return false
}

// field checks the type of a field's value.
func (c *checker) field(n *document.Node, s *node, path string) {
	switch s.kind {
	case boolean:
		c.is(n, document.Boolean, path)
	case int32s, int64s:
		c.integer(n, s.kind, path)
	case float:
		c.is(n, document.Number, path)
	case text, timestamp:
		c.is(n, document.Text, path)
	case duration:
		if c.is(n, document.Text, path) {
			c.duration(n, path)
		}
	case nanoseconds:
		if n.Kind == document.Text {
			c.duration(n, path)
		} else {
			c.integer(n, int64s, path)
		}
	case quantity:
		c.quantity(n, path)
	case texts, numbers, objects:
		if c.is(n, document.List, path) {
			c.items(n, s, path)
		}
	case textMap, boolMap, quantities, textsMap:
		if c.is(n, document.Object, path) {
			c.mapping(n, s.kind, path)
		}
	}
}

func (c *checker) items(n *document.Node, s *node, path string) {
	for i, item := range n.Items {
		at := path + "[" + strconv.Itoa(i) + "]"
		switch {
		case item.Kind == document.Null:
			c.add(item.Line, at, "empty: remove it")
		case s.kind == texts:
			c.is(item, document.Text, at)
		case s.kind == numbers:
			c.integer(item, int32s, at)
		case c.is(item, document.Object, at):
			c.object(item, s, at)
		}
	}
}

func (c *checker) mapping(n *document.Node, k kind, path string) {
	seen := map[string]int{}
	for _, f := range n.Fields {
		at := join(path, f.Key)
		if line, ok := seen[f.Key]; ok {
			c.add(f.Line, at, "set twice: also at line %d", line)
			continue
		}
		seen[f.Key] = f.Line
		switch {
		case f.Value.Kind == document.Null: // it is absent, or removes that of an earlier file
		case k == boolMap:
			c.is(f.Value, document.Boolean, at)
		case k == quantities:
			c.quantity(f.Value, at)
		case k == textsMap:
			if c.is(f.Value, document.List, at) {
				c.items(f.Value, &node{field: &field{kind: texts}}, at)
			}
		default:
			c.is(f.Value, document.Text, at)
		}
	}
}

func (c *checker) integer(n *document.Node, k kind, path string) {
	if !c.is(n, document.Number, path) {
		return
	}
	bits := 64
	if k == int32s {
		bits = 32
	}
	if _, err := strconv.ParseInt(n.Text, 10, bits); err == nil {
		return
	}
	if strings.ContainsAny(n.Text, ".eE") {
		c.add(n.Line, path, "%s is not a whole number", shown(n))
		return
	}
	c.add(n.Line, path, "%s is too large", shown(n))
}

func (c *checker) duration(n *document.Node, path string) {
	if _, err := time.ParseDuration(n.Text); err != nil {
		c.add(n.Line, path, "%s is not a duration such as 1m30s", shown(n))
	}
}

func (c *checker) quantity(n *document.Node, path string) {
	if n.Kind != document.Text && n.Kind != document.Number {
		c.is(n, document.Text, path)
	} else if _, ok := manifest.ParseQuantity(n.Text); !ok {
		c.add(n.Line, path, "%s is not a quantity such as 64Mi", shown(n))
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// shown returns a value as it appears in messages.
func shown(n *document.Node) string {
	const most = 60
	text := printable(string(n.AppendJSON(nil)))
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// printable returns a text for one line of a message, however it comes from a file.
func printable(s string) string {
	const most = 200
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	quoted := strconv.Quote(s)
	if strings.IndexFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) < 0 && utf8.ValidString(s) {
		return s
	}
	return quoted[1 : len(quoted)-1]
}
