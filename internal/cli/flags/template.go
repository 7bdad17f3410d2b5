package flags

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/json" // keeps integers
	"k8s.io/client-go/util/jsonpath"

	"github.com/huskd/husk/internal/cli/render"
)

// The formats with a template, which are those of kubectl. The template follows the equals sign.
const (
	// JSONPath prints what a JSONPath template selects of the JSON document.
	JSONPath Output = "jsonpath="
	// Columns prints a table of columns, such as NAME:.name,IP:.ips[0], with a row for each item.
	Columns Output = "custom-columns="
)

// template returns the format and its template, if o is a format with one.
func (o Output) template() (format Output, text string) {
	for _, format := range []Output{JSONPath, Columns} {
		if text, ok := strings.CutPrefix(string(o), string(format)); ok {
			return format, text
		}
	}
	return "", ""
}

// check returns an error if the template is wrong.
func (o Output) check() (err error) {
	switch format, text := o.template(); format {
	case JSONPath:
		_, err = parsePath(text)
	case Columns:
		_, err = parseColumns(text)
	}
	return err
}

// parsePath parses a template. As with kubectl, the braces around a single path may be left out.
func parsePath(text string) (*jsonpath.JSONPath, error) {
	if text == "" {
		return nil, errors.New("a template must follow, as in jsonpath='{[*].name}'")
	}
	if !strings.ContainsAny(text, "{}") {
		text = "{" + text + "}"
	}
	path := jsonpath.New("").AllowMissingKeys(true)
	if err := path.Parse(text); err != nil {
		return nil, fmt.Errorf("template %q: %w", text, err)
	}
	return path, nil
}

type column struct {
	header string
	path   *jsonpath.JSONPath
}

func parseColumns(text string) (out []column, err error) {
	for part := range strings.SplitSeq(text, ",") {
		header, path, ok := strings.Cut(part, ":")
		if !ok || header == "" || path == "" {
			return nil, fmt.Errorf("column %q must be HEADER:PATH, as in NAME:.name", part)
		}
		c := column{header: header}
		if c.path, err = parsePath(path); err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// expand returns what the template makes of a JSON document.
func (o Output) expand(data []byte) ([]byte, error) {
	var document any
	if err := json.Unmarshal(data, &document); err != nil {
		return nil, fmt.Errorf("huskd's answer is not valid JSON: %w", err)
	}
	var out bytes.Buffer
	format, text := o.template()
	if format == JSONPath {
		path, err := parsePath(text)
		if err == nil {
			err = path.Execute(&out, document)
		}
		return out.Bytes(), err
	}
	columns, err := parseColumns(text)
	if err != nil {
		return nil, err
	}
	items, isList := document.([]any)
	if !isList {
		items = []any{document}
	}
	var header []string
	for _, c := range columns {
		header = append(header, c.header)
	}
	table := render.NewTable(header...)
	for _, item := range items {
		var row []any
		for _, c := range columns {
			var cell bytes.Buffer
			if err := c.path.Execute(&cell, item); err != nil || cell.Len() == 0 { // such as the first of no addresses
				cell.Reset()
				cell.WriteString("<none>")
			}
			row = append(row, cell.String())
		}
		table.Row(row...)
	}
	err = table.Write(&out, false)
	return out.Bytes(), err
}
