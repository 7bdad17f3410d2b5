package netcmd

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cni"
)

// Attachment is one of a pod, or one that was made by hand.
type Attachment struct {
	Network   string    `json:"network"`
	Netns     string    `json:"netns"`
	IfName    string    `json:"ifName"`
	Container string    `json:"containerID"`   // what plugins know it by
	Pod       string    `json:"pod,omitempty"` // namespace/name; empty if it was made by hand
	Addresses []string  `json:"addresses,omitempty"`
	Owed      bool      `json:"owed"`
	Since     time.Time `json:"since,omitzero"` // it is owed
	Tries     int       `json:"tries,omitempty"`
	Error     string    `json:"error,omitempty"`
}

// Huskd is asked for what pods have.
type Huskd interface {
	Attachments(ctx context.Context) ([]Attachment, error)
	// Retry tries to pay what is owed and returns what is in the way.
	Retry(ctx context.Context) error
}

// byHand returns what was attached by hand, or what of it is owed.
func byHand(b *cni.Standalone, owed bool) []Attachment {
	list := []Attachment{}
	for _, a := range b.Attachments() {
		if a.Owed() || !owed {
			list = append(list, Attachment{
				Network: a.Network, Netns: a.Netns, IfName: a.IfName, Container: a.Sandbox,
				Owed: a.Owed(), Since: a.Since, Tries: a.Tries, Error: a.Error,
			})
		}
	}
	return list
}

// ofPods returns what pods have, or what of it is owed. Without huskd it says
// that it can't.
func (t *tool) ofPods(ctx context.Context, owed bool) []Attachment {
	list := []Attachment{}
	all, err := t.Huskd.Attachments(ctx)
	if err != nil {
		_, _ = fmt.Fprintf(t.Errs, "those of pods are left out: %v\n", err)
	}
	for _, a := range all {
		if a.Owed || !owed {
			list = append(list, a)
		}
	}
	return list
}

// manual stands in a table for the pod of what was attached by hand.
const manual = "(by hand)"

func (t *tool) attachments() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "attachments",
		Short: "List what pods are attached to, and what was attached by hand.",
		Example: `husk net attachments
husk net attachments -o json`,
		Args:              t.Takes(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	show := t.Shows(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return t.with(cmd.Context(), func(b *cni.Standalone) error {
			list := append(byHand(b, false), t.ofPods(cmd.Context(), false)...)
			return show(list, func() *render.Table {
				table := render.NewTable("NETWORK", "NETNS", "INTERFACE", "POD", "CONTAINER")
				for _, a := range list {
					table.Row(a.Network, a.Netns, a.IfName, cmp.Or(a.Pod, manual), a.Container)
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
		Short: "List what could not be detached and is owed.",
		Long: `List what could not be detached and is owed.

huskd tries again by itself, ever more rarely, to detach what pods had that are
gone. What was attached by hand is detached only by another del, or by --retry.`,
		Example: `husk net debts
husk net debts --retry`,
		Args:              t.Takes(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	show := t.Shows(cmd)
	cmd.Flags().BoolVar(&retry, "retry", false, "try to detach it now")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return t.with(cmd.Context(), func(b *cni.Standalone) error {
			var failed []error
			pods := t.ofPods(cmd.Context(), true)
			if retry {
				failed = append(failed, b.Retry(cmd.Context()))
			}
			if retry && len(pods) > 0 {
				failed = append(failed, t.Huskd.Retry(cmd.Context()))
				pods = t.ofPods(cmd.Context(), true)
			}
			list := append(byHand(b, true), pods...)
			err := show(list, func() *render.Table {
				table := render.NewTable("NETWORK", "NETNS", "INTERFACE", "POD", "TRIES", "WHY")
				for _, a := range list {
					table.Row(a.Network, a.Netns, a.IfName, cmp.Or(a.Pod, manual), a.Tries, a.Error)
				}
				return table
			})
			return cmp.Or(append(failed, err)...)
		})
	}
	return cmd
}
