package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Bounds of what a document may cost, whatever it says.
const (
	maxSize  = 10 << 20 // bytes of a manifest, and of what its aliases expand to
	maxDepth = 100
)

// kind of a node, as JSON has them.
type kind int

const (
	null kind = iota
	boolean
	number
	text
	list
	object
)

// String names a kind for a message.
func (k kind) String() string {
	return [...]string{"null", "a boolean", "a number", "a string", "a list", "an object"}[k]
}

// node is a value of a document, of YAML or JSON alike, and where it stands.
type node struct {
	kind kind
	line int
	// text is a string's value, or a boolean or number as JSON writes it; raw
	// is what the document has.
	text   string
	raw    string
	items  []*node
	fields []field // of an object, in order, a key as often as it is written
	// size of the value in bytes, about, with all aliases expanded.
	size int
}

type field struct {
	key   string
	line  int
	value *node
}

// get returns the first field of that name, or nil.
func (n *node) get(key string) *node {
	for _, f := range n.fields {
		if f.key == key {
			return f.value
		}
	}
	return nil
}

// zero says whether the value is as good as absent.
func (n *node) zero() bool {
	switch n.kind {
	case boolean:
		return n.text == "false"
	case number:
		return n.text == "0"
	case text:
		return n.text == ""
	case list:
		return len(n.items) == 0
	case object:
		return !slices.ContainsFunc(n.fields, func(f field) bool { return !f.value.zero() })
	}
	return true
}

// appendJSON writes the value as JSON.
func (n *node) appendJSON(out []byte) []byte {
	switch n.kind {
	case null:
		return append(out, "null"...)
	case text:
		quoted, _ := json.Marshal(n.text) // a string always can be
		return append(out, quoted...)
	case list:
		out = append(out, '[')
		for i, item := range n.items {
			if i > 0 {
				out = append(out, ',')
			}
			out = item.appendJSON(out)
		}
		return append(out, ']')
	case object:
		out = append(out, '{')
		for i, f := range n.fields {
			if i > 0 {
				out = append(out, ',')
			}
			key, _ := json.Marshal(f.key)
			out = f.value.appendJSON(append(append(out, key...), ':'))
		}
		return append(out, '}')
	}
	return append(out, n.text...)
}

// syntaxError is a document that can't be read, at a line if that is known.
type syntaxError struct {
	line int
	text string
}

func (e *syntaxError) Error() string { return e.text }

func syntaxf(line int, format string, args ...any) error {
	return &syntaxError{line, fmt.Sprintf(format, args...)}
}

// documents returns the documents of a file that are not empty.
func documents(data []byte) ([]*node, error) {
	if len(data) > maxSize {
		return nil, syntaxf(0, "larger than %d MiB", maxSize>>20)
	}
	// YAML contains JSON but for tabs and surrogate escapes, so what looks
	// like JSON is read as that first.
	trimmed := bytes.TrimLeft(data, " \t\r\n\ufeff")
	if bytes.HasPrefix(trimmed, []byte("{")) {
		docs, err := jsonDocuments(data)
		if err == nil {
			return docs, nil
		}
		if docs, yamlErr := yamlDocuments(data); yamlErr == nil {
			return docs, nil
		}
		return nil, err
	}
	return yamlDocuments(data)
}

func jsonDocuments(data []byte) ([]*node, error) {
	r := &jsonReader{dec: json.NewDecoder(bytes.NewReader(data)), data: data, line: 1}
	r.dec.UseNumber()
	var out []*node
	for {
		n, err := r.value(0)
		if errors.Is(err, io.EOF) && len(out) > 0 {
			return out, nil
		}
		if err != nil {
			if se := (*syntaxError)(nil); errors.As(err, &se) {
				return nil, err
			}
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return nil, syntaxf(r.at(), "JSON ends too early")
			}
			return nil, syntaxf(r.at(), "JSON: %v", err)
		}
		out = append(out, n)
	}
}

// jsonReader builds nodes from tokens and counts lines as it goes.
type jsonReader struct {
	dec  *json.Decoder
	data []byte
	seen int // bytes of data counted
	line int
}

// at returns the line of the last token.
func (r *jsonReader) at() int {
	end := min(int(r.dec.InputOffset()), len(r.data))
	r.line += bytes.Count(r.data[r.seen:end], []byte("\n"))
	r.seen = end
	return r.line
}

func (r *jsonReader) value(depth int) (*node, error) {
	token, err := r.dec.Token()
	if err != nil {
		return nil, err
	}
	n := &node{line: r.at()}
	if depth > maxDepth {
		return nil, syntaxf(n.line, "nested deeper than %d", maxDepth)
	}
	switch v := token.(type) {
	case bool:
		n.kind, n.text = boolean, strconv.FormatBool(v)
		n.raw = n.text
	case json.Number:
		n.kind, n.text, n.raw = number, v.String(), v.String()
	case string:
		n.kind, n.text = text, v
	case json.Delim:
		if err := r.compound(n, v, depth); err != nil {
			return nil, err
		}
	}
	n.measure()
	return n, nil
}

func (r *jsonReader) compound(n *node, open json.Delim, depth int) error {
	n.kind = object
	if open == '[' {
		n.kind = list
	}
	for r.dec.More() {
		if n.kind == list {
			item, err := r.value(depth + 1)
			if err != nil {
				return err
			}
			n.items = append(n.items, item)
			continue
		}
		key, err := r.dec.Token()
		if err != nil {
			return err
		}
		f := field{line: r.at()}
		f.key, _ = key.(string) // the decoder lets nothing else be a key
		if f.value, err = r.value(depth + 1); err != nil {
			return err
		}
		n.fields = append(n.fields, f)
	}
	_, err := r.dec.Token()
	return err
}

// measure sets the size from the parts'. It stops growing past the limit, so
// that aliases of aliases can't make it overflow.
func (n *node) measure() {
	n.size = 1 + len(n.text)
	for _, item := range n.items {
		n.size = min(n.size+item.size, maxSize+1)
	}
	for _, f := range n.fields {
		n.size = min(n.size+len(f.key)+f.value.size, maxSize+1)
	}
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

func yamlDocuments(data []byte) ([]*node, error) {
	var out []*node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			found := yamlLine.FindStringSubmatch(err.Error())
			if found == nil {
				return nil, syntaxf(0, "YAML: %v", err)
			}
			line, _ := strconv.Atoi(found[1])
			return nil, syntaxf(line, "YAML: %s", strings.TrimPrefix(err.Error(), found[0]))
		}
		c := yamlConverter{done: map[*yaml.Node]*node{}}
		n, err := c.convert(&doc, 0)
		if err != nil {
			return nil, err
		}
		if n.size > maxSize {
			return nil, syntaxf(n.line, "its aliases expand to more than %d MiB", maxSize>>20)
		}
		if n.kind != null {
			out = append(out, n)
		}
	}
}

// yamlConverter turns YAML's nodes into ours. An anchored node is converted
// once, however many aliases it has.
type yamlConverter struct {
	done map[*yaml.Node]*node // nil while it is being converted
}

func (c *yamlConverter) convert(y *yaml.Node, depth int) (*node, error) {
	if depth > maxDepth {
		return nil, syntaxf(y.Line, "nested deeper than %d", maxDepth)
	}
	switch y.Kind {
	case 0:
		return &node{}, nil
	case yaml.DocumentNode:
		return c.convert(y.Content[0], depth)
	case yaml.AliasNode:
		y = y.Alias
	}
	if y.Anchor != "" {
		if n, ok := c.done[y]; ok && n == nil {
			return nil, syntaxf(y.Line, "anchor &%s contains itself", y.Anchor)
		} else if ok {
			return n, nil
		}
		c.done[y] = nil
	}
	n, err := c.content(y, depth)
	if err != nil {
		return nil, err
	}
	n.measure()
	if y.Anchor != "" {
		c.done[y] = n
	}
	return n, nil
}

func (c *yamlConverter) content(y *yaml.Node, depth int) (*node, error) {
	n := &node{line: y.Line}
	tag := y.ShortTag()
	switch {
	case y.Kind == yaml.ScalarNode:
		return n, n.scalar(y, tag)
	case y.Kind == yaml.SequenceNode && tag == "!!seq":
		n.kind = list
		for _, item := range y.Content {
			converted, err := c.convert(item, depth+1)
			if err != nil {
				return nil, err
			}
			n.items = append(n.items, converted)
		}
		return n, nil
	case y.Kind == yaml.MappingNode && tag == "!!map":
		n.kind = object
		return n, c.mapping(n, y, depth)
	}
	return nil, syntaxf(y.Line, "YAML: tag %s is not supported", tag)
}

func (c *yamlConverter) mapping(n *node, y *yaml.Node, depth int) error {
	var merged []*node
	for i := 0; i+1 < len(y.Content); i += 2 {
		key := y.Content[i]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if key.Kind != yaml.ScalarNode || key.ShortTag() == "!!null" {
			return syntaxf(key.Line, "YAML: a key must be a string")
		}
		value, err := c.convert(y.Content[i+1], depth+1)
		if err != nil {
			return err
		}
		if key.ShortTag() == "!!merge" {
			merged = append(merged, value)
			continue
		}
		n.fields = append(n.fields, field{key.Value, key.Line, value})
	}
	if len(merged) == 0 {
		return nil
	}
	written := map[string]bool{}
	for _, f := range n.fields {
		written[f.key] = true
	}
	for _, m := range merged {
		if err := n.merge(m, written); err != nil {
			return err
		}
	}
	return nil
}

// merge takes what a << brings: an object, or several of which the first goes
// before the others. What is written beside it goes before them all.
func (n *node) merge(m *node, written map[string]bool) error {
	sources := []*node{m}
	if m.kind == list {
		sources = m.items
	}
	for _, source := range sources {
		if source.kind != object {
			return syntaxf(m.line, "YAML: << merges objects, not %s", source.kind)
		}
		for _, f := range source.fields {
			if !written[f.key] {
				n.fields, written[f.key] = append(n.fields, f), true
			}
		}
	}
	return nil
}

// yaml11 are the booleans that YAML 1.1 has beside true and false. Kubernetes'
// tools read them so, and then refuse them where a string belongs; to read
// them otherwise would let a manifest mean two things.
var yaml11 = map[string]string{
	"y": "true", "yes": "true", "on": "true", "n": "false", "no": "false", "off": "false",
}

func (n *node) scalar(y *yaml.Node, tag string) error {
	n.text, n.raw = y.Value, y.Value
	plain := y.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle|yaml.TaggedStyle) == 0
	if word, ok := yaml11[strings.ToLower(y.Value)]; ok && plain && oneCase(y.Value) {
		n.kind, n.text = boolean, word
		return nil
	}
	switch tag {
	case "!!null":
		n.kind, n.text = null, ""
	case "!!bool":
		n.kind, n.text = boolean, strings.ToLower(y.Value)
	case "!!int", "!!float":
		n.kind = number
		return n.number(y)
	case "!!str", "!!timestamp", "!!merge":
		n.kind = text
	default:
		return syntaxf(y.Line, "YAML: tag %s is not supported", tag)
	}
	return nil
}

// oneCase says whether a word is written as no, No or NO, not as nO.
func oneCase(word string) bool {
	return word == strings.ToLower(word) || word == strings.ToUpper(word) ||
		word[:1] == strings.ToUpper(word[:1]) && word[1:] == strings.ToLower(word[1:])
}

// number writes YAML's hexadecimal, octal and grouped numbers as JSON does.
func (n *node) number(y *yaml.Node) error {
	if json.Valid([]byte(y.Value)) {
		return nil
	}
	var value any
	if err := y.Decode(&value); err != nil {
		return syntaxf(y.Line, "YAML: %q is not a number", y.Value)
	}
	switch v := value.(type) {
	case int, int64, uint64:
		n.text = fmt.Sprint(v)
	case float64:
		if math.IsInf(v, 0) || math.IsNaN(v) {
			return syntaxf(y.Line, "YAML: %s is no number that JSON has", y.Value)
		}
		n.text = strconv.FormatFloat(v, 'g', -1, 64)
	default:
		return syntaxf(y.Line, "YAML: %q is not a number", y.Value)
	}
	return nil
}
