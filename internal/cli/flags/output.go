// Package flags holds the values of flags that several commands share.
package flags

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/terminal"
)

// Output is the value of the flag -o.
type Output string

// The output formats. The zero Output is a table.
const (
	Table Output = ""
	Wide  Output = "wide"
	JSON  Output = "json"
	YAML  Output = "yaml"
	// Name prints KIND/[NAMESPACE/]NAME of each item, a line each, as other commands take it.
	Name Output = "name"
)

// resource is an item that Name can print.
type resource interface{ Resource() string }

// outputValue is the pflag.Value of -o. The table, which is the default, can't be named.
type outputValue struct {
	output  *Output
	allowed []Output
}

func (v outputValue) String() string { return string(*v.output) }
func (v outputValue) Type() string   { return "format" }

func (v outputValue) Set(s string) error {
	for _, o := range v.allowed {
		if s == string(o) {
			*v.output = o
		} else if format, _ := Output(s).template(); format != o || format == "" {
			continue
		}
		if err := Output(s).check(); err != nil {
			return err
		}
		*v.output = Output(s)
		return nil
	}
	return fmt.Errorf("must be one of %s", v.list())
}

func (v outputValue) list() string {
	names := make([]string, len(v.allowed))
	for i, o := range v.allowed {
		names[i] = string(o)
		switch o {
		case JSONPath:
			names[i] += "TEMPLATE"
		case Columns:
			names[i] += "HEADER:PATH"
		}
	}
	return strings.Join(names, ", ")
}

// AddOutput gives cmd the flag -o with the allowed formats.
func AddOutput(cmd *cobra.Command, allowed ...Output) *Output {
	o := new(Output)
	v := outputValue{o, allowed}
	cmd.Flags().VarP(v, "output", "o", "print as "+v.list())
	complete := make([]cobra.Completion, len(allowed))
	for i, o := range allowed {
		complete[i] = string(o)
	}
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(complete, cobra.ShellCompDirectiveNoFileComp))
	return o
}

// Structured reports whether o is for programs: JSON, YAML, or what a template makes of them.
func (o Output) Structured() bool {
	format, _ := o.template()
	return o == JSON || o == YAML || o == Name || format != ""
}

// Print prints v in a structured format, or else the table.
func (o Output) Print(to *os.File, v any, table func() *render.Table) error {
	if !o.Structured() {
		return table().Write(to, terminal.Fancy(to))
	}
	if o == Name {
		return printNames(to, v)
	}
	var data bytes.Buffer
	e := json.NewEncoder(&data)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	return o.PrintJSON(to, data.Bytes())
}

// printNames prints the names of a resource or of a slice of them.
func printNames(to *os.File, v any) error {
	list := reflect.ValueOf(v)
	if list.Kind() != reflect.Slice {
		list = reflect.ValueOf([]any{v})
	}
	var text strings.Builder
	for i := range list.Len() {
		fmt.Fprintln(&text, render.Clean(list.Index(i).Interface().(resource).Resource()))
	}
	_, err := to.WriteString(text.String())
	return err
}

// PrintJSON prints a JSON document from huskd: indented, converted to YAML, or what a template
// makes of it.
func (o Output) PrintJSON(to *os.File, data []byte) error {
	var text bytes.Buffer
	if format, _ := o.template(); format != "" {
		out, err := o.expand(data)
		if err != nil {
			return err
		}
		text.Write(out)
	} else if o == YAML {
		y, err := yaml.JSONToYAML(data)
		if err != nil {
			return fmt.Errorf("huskd's answer is not valid JSON: %w", err)
		}
		text.Write(y)
	} else {
		if err := json.Indent(&text, render.CleanJSON(bytes.TrimSpace(data)), "", "  "); err != nil {
			return fmt.Errorf("huskd's answer is not valid JSON: %w", err)
		}
		text.WriteByte('\n')
	}
	_, err := to.Write(text.Bytes())
	return err
}
