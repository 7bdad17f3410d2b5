package netcmd

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
	"github.com/huskd/husk/internal/cni"
)

// attachment is an attachment of a pod or one made by hand, as it is printed.
type attachment struct {
	Network   string    `json:"network"`
	Netns     string    `json:"netns"`
	IfName    string    `json:"ifName"`
	Container string    `json:"containerID"`   // CNI_CONTAINERID
	Pod       string    `json:"pod,omitempty"` // namespace/name; empty if made by hand
	Addresses []string  `json:"addresses,omitempty"`
	Owed      bool      `json:"owed"`            // its DEL has not succeeded yet
	Since     time.Time `json:"since,omitzero"`  // when it became owed
	Tries     int       `json:"tries,omitempty"` // of the DEL
	Error     string    `json:"error,omitempty"` // of the last try
}

// madeByHand returns the attachments made by hand; only those that are owed if owed is set.
func madeByHand(s *cni.Standalone, owed bool) []attachment {
	list := []attachment{}
	for _, a := range s.Attachments() {
		if a.Owed() || !owed {
			list = append(list, attachment{
				Network: a.Network, Netns: a.Netns, IfName: a.IfName, Container: a.Sandbox,
				Owed: a.Owed(), Since: a.Since, Tries: a.Tries, Error: a.Error,
			})
		}
	}
	return list
}

// ofPods returns the attachments of pods; only those that are owed if owed is set. If huskd doesn't
// answer, it prints a warning and returns none.
func (t *tool) ofPods(ctx context.Context, owed bool) (list []attachment) {
	err := t.ask(func(c *client.Client) error {
		answer, err := c.ListAttachments(ctx, &huskv1.ListAttachmentsRequest{})
		for _, a := range answer.GetAttachments() {
			if !a.Owed && owed {
				continue
			}
			one := attachment{
				Network: a.Network, Netns: a.Netns, IfName: a.Interface, Container: a.Sandbox, Addresses: a.Addresses,
				Pod: a.Namespace + "/" + a.Name, Owed: a.Owed, Tries: int(a.Tries), Error: a.Error,
			}
			if a.SinceNs > 0 {
				one.Since = time.Unix(0, a.SinceNs)
			}
			list = append(list, one)
		}
		return err
	})
	if err != nil {
		_, _ = fmt.Fprintf(t.Errs, "attachments of pods are not listed: %v\n", err)
	}
	return list
}

// podNamespace asks huskd for the path of a pod's network namespace.
func (t *tool) podNamespace(ctx context.Context, pod string) (string, error) {
	var document struct {
		NetworkSettings struct{ SandboxKey string }
	}
	err := t.ask(func(c *client.Client) error {
		answer, err := c.Inspect(ctx, &huskv1.InspectRequest{Name: pod})
		if err != nil {
			return err
		}
		return json.Unmarshal(answer.Json, &document)
	})
	return document.NetworkSettings.SandboxKey, err
}

// retryPods makes huskd retry the DELs that it owes, and returns what failed.
func (t *tool) retryPods(ctx context.Context) error {
	return t.ask(func(c *client.Client) error {
		_, err := c.RetryDebts(ctx, &huskv1.RetryDebtsRequest{})
		return err
	})
}

func (t *tool) ask(do func(*client.Client) error) error {
	c, err := t.Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	return do(c)
}

// noPod stands in the column POD for attachments made by hand.
const noPod = "(by hand)"

func (t *tool) attachments() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "attachments",
		Short: "List the attachments of pods and those made by hand.",
		Example: `husk net attachments
husk net attachments -o json`,
		Args:              usageerror.Takes(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return t.with(cmd.Context(), func(s *cni.Standalone) error {
			list := append(madeByHand(s, false), t.ofPods(cmd.Context(), false)...)
			return o.Print(t.Out, list, func() *render.Table {
				table := render.NewTable("NETWORK", "NETNS", "INTERFACE", "POD", "CONTAINER")
				for _, a := range list {
					table.Row(a.Network, a.Netns, a.IfName, cmp.Or(a.Pod, noPod), a.Container)
				}
				return table
			})
		})
	}
	return cmd
}

func (t *tool) debts() *cobra.Command {
	var retry bool
	cmd := &cobra.Command{
		Use:   "debts",
		Short: "List attachments whose DEL has failed and is still owed.",
		Long: `List attachments whose DEL has failed and is still owed.

huskd retries the DELs of removed pods by itself, at growing intervals. Those of
attachments made by hand are retried only by another "del", or by --retry.`,
		Example: `husk net debts
husk net debts --retry`,
		Args:              usageerror.Takes(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML)
	cmd.Flags().BoolVar(&retry, "retry", false, "retry them now, then list what is left")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return t.with(cmd.Context(), func(s *cni.Standalone) error {
			var failed []error
			pods := t.ofPods(cmd.Context(), true)
			if retry {
				failed = append(failed, s.Retry(cmd.Context()))
			}
			if retry && len(pods) > 0 {
				failed = append(failed, t.retryPods(cmd.Context()))
				pods = t.ofPods(cmd.Context(), true)
			}
			list := append(madeByHand(s, true), pods...)
			err := o.Print(t.Out, list, func() *render.Table {
				table := render.NewTable("NETWORK", "NETNS", "INTERFACE", "POD", "TRIES", "ERROR")
				for _, a := range list {
					table.Row(a.Network, a.Netns, a.IfName, cmp.Or(a.Pod, noPod), a.Tries, a.Error)
				}
				return table
			})
			return cmp.Or(append(failed, err)...)
		})
	}
	return cmd
}
