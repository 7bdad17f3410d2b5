package cli

import (
	"github.com/spf13/cobra"

	"github.com/huskd/husk/internal/cli/netcmd"
)

func newNet(a *app) *cobra.Command {
	return netcmd.New(netcmd.App{Out: a.out, Errs: a.errs, Dial: a.dial})
}
