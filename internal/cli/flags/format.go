package flags

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strings"
	"text/tabwriter"
	"text/template"

	"github.com/spf13/cobra"

	"github.com/huskd/husk/internal/cli/render"
)

// Format is the value of the flag --format: a Go template for each row, as docker and podman have
// it. The zero Format is not set.
type Format struct {
	text  string
	table bool // begins with "table": with a header, and aligned at tabs
	json  bool // an object for each row
	rows  *template.Template
}

// AddFormat gives cmd the flag --format for rows such as example, and excludes it with others.
func AddFormat(cmd *cobra.Command, example any, excludes ...string) *Format {
	f := &Format{}
	value := formatValue{f, example}
	cmd.Flags().Var(value, "format", "`TEMPLATE` of Go for each row, as with docker, or json")
	for _, other := range excludes {
		cmd.MarkFlagsMutuallyExclusive("format", other)
	}
	return f
}

// formatValue is the pflag.Value of --format.
type formatValue struct {
	*Format
	example any
}

func (v formatValue) String() string {
	if v.Format == nil { // of the zero value, by which pflag finds out the default
		return ""
	}
	return v.text
}

func (formatValue) Type() string { return "template" }

var functions = template.FuncMap{
	"json": func(v any) (string, error) {
		raw, err := json.Marshal(v)
		return string(raw), err
	},
	"join": strings.Join, "lower": strings.ToLower, "upper": strings.ToUpper,
}

// Set parses a template, and tries it with a row.
func (v formatValue) Set(text string) (err error) {
	f := Format{text: text, json: text == "json"}
	if f.json {
		*v.Format = f
		return nil
	}
	text, f.table = strings.CutPrefix(text, "table ")
	text = strings.NewReplacer(`\t`, "\t", `\n`, "\n").Replace(text)
	if f.rows, err = template.New("").Funcs(functions).Parse(text); err != nil {
		return fmt.Errorf("%s", strings.TrimPrefix(err.Error(), "template: "))
	}
	if err := f.rows.Execute(io.Discard, v.example); err != nil {
		return fmt.Errorf("use the fields %s", strings.Join(fieldsOf(v.example), ", "))
	}
	*v.Format = f
	return nil
}

func fieldsOf(row any) (names []string) {
	for f := range reflect.TypeOf(row).Fields() {
		names = append(names, f.Name)
	}
	return names
}

// IsSet reports whether the flag is on the command line.
func (f *Format) IsSet() bool { return f.text != "" }

// simpleField is a field in a template that a header stands for.
var simpleField = regexp.MustCompile(`\{\{\s*\.(\w+)\s*\}\}`)

// Print prints the rows, which is a slice of what AddFormat got.
func (f *Format) Print(to io.Writer, rows any) error {
	var out bytes.Buffer
	if f.table {
		_, text, _ := strings.Cut(f.text, " ")
		fmt.Fprintln(&out, simpleField.ReplaceAllStringFunc(strings.ReplaceAll(text, `\t`, "\t"), func(field string) string {
			return strings.ToUpper(simpleField.FindStringSubmatch(field)[1])
		}))
	}
	for i, list := 0, reflect.ValueOf(rows); i < list.Len(); i++ {
		row := list.Index(i).Interface()
		if f.json {
			raw, err := json.Marshal(row)
			if err != nil {
				return err
			}
			fmt.Fprintf(&out, "%s\n", raw)
			continue
		}
		var line bytes.Buffer
		if err := f.rows.Execute(&line, row); err != nil {
			return fmt.Errorf("--format: %w", err)
		}
		lines := strings.Split(line.String(), "\n")
		for j := range lines {
			cells := strings.Split(lines[j], "\t")
			for k := range cells {
				cells[k] = render.Clean(cells[k])
			}
			lines[j] = strings.Join(cells, "\t")
		}
		fmt.Fprintln(&out, strings.Join(lines, "\n"))
	}
	if !f.table {
		_, err := to.Write(out.Bytes())
		return err
	}
	const gap = 3
	w := tabwriter.NewWriter(to, 0, 0, gap, ' ', 0)
	if _, err := w.Write(out.Bytes()); err != nil {
		return err
	}
	return w.Flush()
}
