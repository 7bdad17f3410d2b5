package cli

import (
	"context"
	"encoding/json"
	"time"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/netcmd"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func newNet(a *app) *cobra.Command {
	return netcmd.New(netcmd.App{
		Out: a.out, Errs: a.errs, Takes: usageerror.Takes, Pod: a.namespace, Huskd: attachments{a},
		Group: func(cmd *cobra.Command) { cmd.Args, cmd.RunE = usageerror.NoSuchCommand, showHelp },
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

// attachments asks huskd for those of pods.
type attachments struct{ a *app }

func (h attachments) Attachments(ctx context.Context) ([]netcmd.Attachment, error) {
	c, err := h.a.dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	answer, err := c.ListAttachments(ctx, &huskv1.ListAttachmentsRequest{})
	if err != nil {
		return nil, err
	}
	var list []netcmd.Attachment
	for _, x := range answer.Attachments {
		one := netcmd.Attachment{
			Network: x.Network, Netns: x.Netns, IfName: x.Interface, Container: x.Sandbox, Addresses: x.Addresses,
			Pod: x.Namespace + "/" + x.Name, Owed: x.Owed, Tries: int(x.Tries), Error: x.Error,
		}
		if x.SinceNs > 0 {
			one.Since = time.Unix(0, x.SinceNs)
		}
		list = append(list, one)
	}
	return list, nil
}

func (h attachments) Retry(ctx context.Context) error {
	c, err := h.a.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.RetryDebts(ctx, &huskv1.RetryDebtsRequest{})
	return err
}
