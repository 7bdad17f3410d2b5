package cli

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/terminal"
)

// output is the value of the flag -o.
type output string

// The outputs; the empty one is a table.
const (
	asTable output = ""
	asWide  output = "wide"
	asJSON  output = "json"
	asYAML  output = "yaml"
)

// outputFlag is -o with the outputs that a command has besides its default.
type outputFlag struct {
	value   *output
	allowed []output
}

func (f outputFlag) String() string { return string(*f.value) }
func (f outputFlag) Type() string   { return "format" }

func (f outputFlag) Set(s string) error {
	for _, o := range f.allowed {
		if s == string(o) {
			*f.value = o
			return nil
		}
	}
	return fmt.Errorf("it is one of %s", f.list())
}

func (f outputFlag) list() string {
	s := string(f.allowed[0])
	for _, o := range f.allowed[1:] {
		s += ", " + string(o)
	}
	return s
}

// addOutput gives cmd the flag -o.
func addOutput(cmd *cobra.Command, allowed ...output) *output {
	o := new(output)
	f := outputFlag{o, allowed}
	cmd.Flags().VarP(f, "output", "o", "show as "+f.list())
	complete := make([]cobra.Completion, len(allowed))
	for i, o := range allowed {
		complete[i] = string(o)
	}
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(complete, cobra.ShellCompDirectiveNoFileComp))
	return o
}

// show prints v as the output asks: marshalled, or as table makes it.
func (a *app) show(o output, v any, table func() *render.Table) error {
	if o == asJSON || o == asYAML {
		var data bytes.Buffer
		e := json.NewEncoder(&data)
		e.SetEscapeHTML(false)
		if err := e.Encode(v); err != nil {
			return err
		}
		return a.showJSON(o, data.Bytes())
	}
	return table().Write(a.out, terminal.Fancy(a.out))
}

// showJSON prints a JSON document, indented or turned into YAML.
func (a *app) showJSON(o output, data []byte) error {
	var text bytes.Buffer
	if o == asYAML {
		y, err := yaml.JSONToYAML(data)
		if err != nil {
			return fmt.Errorf("huskd's answer is no valid JSON: %w", err)
		}
		text.Write(y)
	} else {
		if err := json.Indent(&text, bytes.TrimSpace(data), "", "  "); err != nil {
			return fmt.Errorf("huskd's answer is no valid JSON: %w", err)
		}
		text.WriteByte('\n')
	}
	_, err := a.out.Write(text.Bytes())
	return err
}
