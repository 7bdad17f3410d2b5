package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func newDoctor(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check what this machine can do and what follows; 1 if something won't work.",
		Example: `husk doctor
husk doctor -o json`,
		Args:              usageerror.Takes(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	o := addOutput(cmd, asJSON, asYAML)
	cmd.RunE = a.asks(func(ctx context.Context, c *client.Client, _ []string) error {
		answer, err := c.Doctor(ctx, &huskv1.DoctorRequest{})
		if err != nil {
			return err
		}
		if err := a.show(*o, render.CheckViews(answer.Checks), func() *render.Table { return render.CheckTable(answer.Checks) }); err != nil {
			return err
		}
		return failedChecks(answer.Checks)
	})
	return cmd
}

// failing is the level of a check that ends husk doctor with exit code 1.
const failing = "fail"

func failedChecks(checks []*huskv1.Check) error {
	var names []string
	for _, c := range checks {
		if c.Level == failing {
			names = append(names, c.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	if len(names) == 1 {
		return errors.New("1 check fails: " + names[0])
	}
	return fmt.Errorf("%d checks fail: %s", len(names), strings.Join(names, ", "))
}
