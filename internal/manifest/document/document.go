// Package document parses YAML and JSON files into nodes that know their line. It is pure. It
// bounds the time and memory that a document can take.
package document

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// MaxSize is the maximum size in bytes of a file, and of a document with all its aliases expanded.
const MaxSize = 10 << 20

const maxDepth = 100

// Kind is the kind of a node, one of JSON's.
type Kind int

// The kinds.
const (
	Null Kind = iota
	Boolean
	Number
	Text
	List
	Object
)

// String returns the kind as it appears in messages.
func (k Kind) String() string {
	return [...]string{"null", "a boolean", "a number", "a string", "a list", "an object"}[k]
}

// Node is a value of a YAML or JSON document.
type Node struct {
	Kind Kind
	Line int
	// Text is the value of a string, or a boolean or number in JSON's notation. Raw is what the
	// document contains.
	Text   string
	Raw    string
	Items  []*Node
	Fields []Field // of an object, in order, including duplicates
	// size is the approximate size in bytes with all aliases expanded.
	size int
}

// Field is a field of an object.
type Field struct {
	Key   string
	Line  int
	Value *Node
}

// Get returns the value of the first field with the key, or nil.
func (n *Node) Get(key string) *Node {
	for _, f := range n.Fields {
		if f.Key == key {
			return f.Value
		}
	}
	return nil
}

// IsZero reports whether the value is empty, so that it counts as absent.
func (n *Node) IsZero() bool {
	switch n.Kind {
	case Boolean:
		return n.Text == "false"
	case Number:
		return n.Text == "0"
	case Text:
		return n.Text == ""
	case List:
		return len(n.Items) == 0
	case Object:
		return !slices.ContainsFunc(n.Fields, func(f Field) bool { return !f.Value.IsZero() })
	}
	return true
}

// AppendJSON appends the value to out, as JSON.
func (n *Node) AppendJSON(out []byte) []byte {
	switch n.Kind {
	case Null:
		return append(out, "null"...)
	case Text:
		quoted, _ := json.Marshal(n.Text) // never fails for a string
		return append(out, quoted...)
	case List:
		out = append(out, '[')
		for i, item := range n.Items {
			if i > 0 {
				out = append(out, ',')
			}
			out = item.AppendJSON(out)
		}
		return append(out, ']')
	case Object:
		out = append(out, '{')
		for i, f := range n.Fields {
			if i > 0 {
				out = append(out, ',')
			}
			key, _ := json.Marshal(f.Key)
			out = f.Value.AppendJSON(append(append(out, key...), ':'))
		}
		return append(out, '}')
	}
	return append(out, n.Text...)
}

// SyntaxError is an error of a document that can't be parsed.
type SyntaxError struct {
	Line int // 0 if unknown
	text string
}

func (e *SyntaxError) Error() string { return e.text }

func syntaxf(line int, format string, args ...any) error {
	return &SyntaxError{line, fmt.Sprintf(format, args...)}
}

// Read parses a file and returns its documents. Empty ones are left out.
func Read(data []byte) ([]*Node, error) {
	if len(data) > MaxSize {
		return nil, syntaxf(0, "larger than %d MiB", MaxSize>>20)
	}
	// YAML is a superset of JSON except for tabs and surrogate escapes. So what looks like JSON is
	// first parsed as JSON.
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

func jsonDocuments(data []byte) ([]*Node, error) {
	r := &jsonReader{dec: json.NewDecoder(bytes.NewReader(data)), data: data, line: 1}
	r.dec.UseNumber()
	var out []*Node
	for {
		n, err := r.value(0)
		if errors.Is(err, io.EOF) && len(out) > 0 {
			return out, nil
		}
		if err != nil {
			if se := (*SyntaxError)(nil); errors.As(err, &se) {
				return nil, err
			}
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return nil, syntaxf(r.at(), "JSON ends unexpectedly")
			}
			return nil, syntaxf(r.at(), "JSON: %v", err)
		}
		out = append(out, n)
	}
}

// jsonReader builds nodes from tokens and counts lines.
type jsonReader struct {
	dec  *json.Decoder
	data []byte
	seen int // number of bytes of data before line
	line int
}

// at returns the line of the last token.
func (r *jsonReader) at() int {
	end := min(int(r.dec.InputOffset()), len(r.data))
	r.line += bytes.Count(r.data[r.seen:end], []byte("\n"))
	r.seen = end
	return r.line
}

func (r *jsonReader) value(depth int) (*Node, error) {
	token, err := r.dec.Token()
	if err != nil {
		return nil, err
	}
	n := &Node{Line: r.at()}
	if depth > maxDepth {
		return nil, syntaxf(n.Line, "nested deeper than %d", maxDepth)
	}
	switch v := token.(type) {
	case bool:
		n.Kind, n.Text = Boolean, strconv.FormatBool(v)
		n.Raw = n.Text
	case json.Number:
		n.Kind, n.Text, n.Raw = Number, v.String(), v.String()
	case string:
		n.Kind, n.Text = Text, v
	case json.Delim:
		if err := r.compound(n, v, depth); err != nil {
			return nil, err
		}
	}
	n.measure()
	return n, nil
}

func (r *jsonReader) compound(n *Node, open json.Delim, depth int) error {
	n.Kind = Object
	if open == '[' {
		n.Kind = List
	}
	for r.dec.More() {
		if n.Kind == List {
			item, err := r.value(depth + 1)
			if err != nil {
				return err
			}
			n.Items = append(n.Items, item)
			continue
		}
		key, err := r.dec.Token()
		if err != nil {
			return err
		}
		f := Field{Line: r.at()}
		f.Key, _ = key.(string) // the decoder accepts only strings as keys
		if f.Value, err = r.value(depth + 1); err != nil {
			return err
		}
		n.Fields = append(n.Fields, f)
	}
	_, err := r.dec.Token()
	return err
}

// measure sets the size from the sizes of the parts. It caps it just above the limit, so that
// nested aliases can't make it overflow.
func (n *Node) measure() {
	n.size = 1 + len(n.Text)
	for _, item := range n.Items {
		n.size = min(n.size+item.size, MaxSize+1)
	}
	for _, f := range n.Fields {
		n.size = min(n.size+len(f.Key)+f.Value.size, MaxSize+1)
	}
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

func yamlDocuments(data []byte) ([]*Node, error) {
	var out []*Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			line, text := splitYAMLError(err)
			return nil, syntaxf(mistakenLine(data, line, text), "YAML: %s", text)
		}
		c := yamlConverter{done: map[*yaml.Node]*Node{}}
		n, err := c.convert(&doc, 0)
		if err != nil {
			return nil, err
		}
		if n.size > MaxSize {
			return nil, syntaxf(n.Line, "its aliases expand to more than %d MiB", MaxSize>>20)
		}
		if n.Kind != Null {
			out = append(out, n)
		}
	}
}

// splitYAMLError returns the line that the library reports, 0 if none, and the text without it.
func splitYAMLError(err error) (line int, text string) {
	found := yamlLine.FindStringSubmatch(err.Error())
	if found == nil {
		return 0, err.Error()
	}
	line, _ = strconv.Atoi(found[1])
	return line, strings.TrimPrefix(err.Error(), found[0])
}

// maxSearched is the size in bytes up to which the line of a mistake is searched. It bounds the
// time: a search parses the file about fifteen times.
const maxSearched = 256 << 10

// mistakenLine returns the line of a mistake for which the library reports another: often that
// where the block around the mistake begins, or the one before. It is the last line of the shortest
// beginning of the file that can't be parsed for the same reason. What isn't closed, such as a
// quote, is reported where it begins.
func mistakenLine(data []byte, reported int, text string) int {
	if len(data) > maxSearched {
		return reported
	}
	var ends []int // of lines
	for i, c := range data {
		if c == '\n' {
			ends = append(ends, i+1)
		}
	}
	if n := len(ends); n == 0 || ends[n-1] < len(data) {
		ends = append(ends, len(data))
	}
	mistaken := func(lines int) bool { return yamlFault(data[:ends[lines-1]]) == text }
	// The reported line is at most one after that where the block begins, unless that is the first.
	before := min(max(0, reported-2), len(ends)-1)
	if before > 0 && mistaken(before) {
		before = 0
	}
	return before + 1 + sort.Search(len(ends)-before-1, func(i int) bool { return mistaken(before + 1 + i) })
}

// yamlFault returns why data can't be parsed; "" if it can.
func yamlFault(data []byte) string {
	for dec := yaml.NewDecoder(bytes.NewReader(data)); ; {
		err := dec.Decode(&yaml.Node{})
		if errors.Is(err, io.EOF) {
			return ""
		}
		if err != nil {
			_, text := splitYAMLError(err)
			return text
		}
	}
}

// yamlConverter converts YAML nodes. An anchored node is converted once, however many aliases it
// has.
type yamlConverter struct {
	done map[*yaml.Node]*Node // by anchored node; nil while it is being converted
}

func (c *yamlConverter) convert(y *yaml.Node, depth int) (*Node, error) {
	if depth > maxDepth {
		return nil, syntaxf(y.Line, "nested deeper than %d", maxDepth)
	}
	switch y.Kind {
	case 0:
		return &Node{}, nil
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

func (c *yamlConverter) content(y *yaml.Node, depth int) (*Node, error) {
	n := &Node{Line: y.Line}
	tag := y.ShortTag()
	switch {
	case y.Kind == yaml.ScalarNode:
		return n, n.scalar(y, tag)
	case y.Kind == yaml.SequenceNode && tag == "!!seq":
		n.Kind = List
		for _, item := range y.Content {
			converted, err := c.convert(item, depth+1)
			if err != nil {
				return nil, err
			}
			n.Items = append(n.Items, converted)
		}
		return n, nil
	case y.Kind == yaml.MappingNode && tag == "!!map":
		n.Kind = Object
		return n, c.mapping(n, y, depth)
	}
	return nil, syntaxf(y.Line, "YAML: tag %s is not supported", tag)
}

func (c *yamlConverter) mapping(n *Node, y *yaml.Node, depth int) error {
	var merged []*Node
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
		n.Fields = append(n.Fields, Field{key.Value, key.Line, value})
	}
	if len(merged) == 0 {
		return nil
	}
	written := map[string]bool{}
	for _, f := range n.Fields {
		written[f.Key] = true
	}
	for _, m := range merged {
		if err := n.merge(m, written); err != nil {
			return err
		}
	}
	return nil
}

// merge adds the fields of a << key: those of an object, or of a list of objects. Earlier objects
// take precedence over later ones, and the fields in written over all of them.
func (n *Node) merge(m *Node, written map[string]bool) error {
	sources := []*Node{m}
	if m.Kind == List {
		sources = m.Items
	}
	for _, source := range sources {
		if source.Kind != Object {
			return syntaxf(m.Line, "YAML: << merges objects, not %s", source.Kind)
		}
		for _, f := range source.Fields {
			if !written[f.Key] {
				n.Fields, written[f.Key] = append(n.Fields, f), true
			}
		}
	}
	return nil
}

// yaml11Booleans are YAML 1.1's booleans besides true and false. Kubernetes' tools parse them as
// booleans, and so refuse them in place of a string. Parsing them as strings here would give the
// same manifest two meanings.
var yaml11Booleans = map[string]string{
	"y": "true", "yes": "true", "on": "true", "n": "false", "no": "false", "off": "false",
}

func (n *Node) scalar(y *yaml.Node, tag string) error {
	n.Text, n.Raw = y.Value, y.Value
	plain := y.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle|yaml.TaggedStyle) == 0
	if word, ok := yaml11Booleans[strings.ToLower(y.Value)]; ok && plain && consistentCase(y.Value) {
		n.Kind, n.Text = Boolean, word
		return nil
	}
	switch tag {
	case "!!null":
		n.Kind, n.Text = Null, ""
	case "!!bool":
		n.Kind, n.Text = Boolean, strings.ToLower(y.Value)
	case "!!int", "!!float":
		n.Kind = Number
		return n.number(y)
	case "!!str", "!!timestamp", "!!merge":
		n.Kind = Text
	default:
		return syntaxf(y.Line, "YAML: tag %s is not supported", tag)
	}
	return nil
}

// consistentCase reports whether a word is written like no, No or NO, not like nO.
func consistentCase(word string) bool {
	return word == strings.ToLower(word) || word == strings.ToUpper(word) ||
		word[:1] == strings.ToUpper(word[:1]) && word[1:] == strings.ToLower(word[1:])
}

// number converts YAML's hexadecimal, octal and grouped numbers to JSON's notation.
func (n *Node) number(y *yaml.Node) error {
	if json.Valid([]byte(y.Value)) {
		return nil
	}
	var value any
	if err := y.Decode(&value); err != nil {
		return syntaxf(y.Line, "YAML: %q is not a number", y.Value)
	}
	switch v := value.(type) {
	case int, int64, uint64:
		n.Text = fmt.Sprint(v)
	case float64:
		if math.IsInf(v, 0) || math.IsNaN(v) {
			return syntaxf(y.Line, "YAML: %s can't be written as a number in JSON", y.Value)
		}
		n.Text = strconv.FormatFloat(v, 'g', -1, 64)
	default:
		return syntaxf(y.Line, "YAML: %q is not a number", y.Value)
	}
	return nil
}
