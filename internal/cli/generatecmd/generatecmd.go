// Package generatecmd has the command husk generate.
package generatecmd

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/usageerror"
)

// App is what the command needs of the command line.
type App struct {
	Out *os.File
	// WithClient returns the RunE of a command that sends requests to huskd.
	WithClient func(do func(ctx context.Context, c *client.Client, args []string) error) func(*cobra.Command, []string) error
	// CompletePods completes the names of pods.
	CompletePods cobra.CompletionFunc
}

// New returns the command. As in podman, the word kube may precede the names.
func New(app App) *cobra.Command {
	cmd := generate(app, "generate", `husk generate web
husk generate web db >shop.yaml
husk generate web | ssh node2 husk run -`)
	cmd.AddCommand(generate(app, "kube", `husk generate kube web
husk generate kube web db >shop.yaml`))
	return cmd
}

func generate(app App, word, examples string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   word + " POD...",
		Short: "Print the manifests of pods, as husk run and kubectl take them.",
		Long: `Print the manifests of pods, as husk run and kubectl take them.

A manifest has what was given, without defaults and without what belongs to this
node. The config maps, secrets and claims that a pod refers to are not in it.`,
		Example:           examples,
		Args:              usageerror.Takes(1, -1, "the NAME of a pod"),
		ValidArgsFunction: app.CompletePods,
	}
	cmd.RunE = app.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		var all []byte
		for i, name := range args {
			r, err := c.Generate(ctx, &huskv1.GenerateRequest{Name: name})
			if err != nil {
				return err
			}
			if i > 0 {
				all = append(all, "---\n"...)
			}
			all = append(all, r.Yaml...)
		}
		_, err := app.Out.Write(all)
		return err
	})
	return cmd
}
