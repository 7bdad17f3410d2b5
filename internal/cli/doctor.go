package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func newDoctor(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine; the exit code is 1 if something won't work.",
		Example: `husk doctor
husk doctor -o json`,
		Args:              usageerror.Takes(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML)
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
		answer, err := c.Doctor(ctx, &huskv1.DoctorRequest{})
		if err != nil {
			return err
		}
		if err := o.Print(a.out, render.CheckViews(answer.Checks), func() *render.Table { return render.CheckTable(answer.Checks) }); err != nil {
			return err
		}
		return failedChecks(answer.Checks)
	})
	return cmd
}

// failing is the level of a check that makes husk doctor exit with 1.
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
		return errors.New("1 check failed: " + names[0])
	}
	return fmt.Errorf("%d checks failed: %s", len(names), strings.Join(names, ", "))
}
