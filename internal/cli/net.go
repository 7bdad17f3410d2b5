package cli

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/network"
	"github.com/huskd/husk/internal/cli/render"
)

func newNet(a *app) *cobra.Command {
	return network.New(network.App{
		Out: a.out, Errs: a.errs, Takes: takes, Pod: a.namespace,
		Group: func(cmd *cobra.Command) { cmd.Args, cmd.RunE = noSuchCommand, showHelp },
		Shows: func(cmd *cobra.Command) func(any, func() *render.Table) error {
			o := addOutput(cmd, asJSON, asYAML)
			return func(v any, table func() *render.Table) error { return a.show(*o, v, table) }
		},
	})
}

// namespace asks huskd for the path of a pod's network namespace.
func (a *app) namespace(ctx context.Context, pod string) (string, error) {
	c, err := a.dial()
	if err != nil {
		return "", err
	}
	defer c.Close()
	answer, err := c.Inspect(ctx, &huskv1.InspectRequest{Name: pod})
	if err != nil {
		return "", err
	}
	var document struct {
		NetworkSettings struct{ SandboxKey string }
	}
	err = json.Unmarshal(answer.Json, &document)
	return document.NetworkSettings.SandboxKey, err
}
