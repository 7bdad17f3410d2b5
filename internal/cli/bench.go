package cli

import (
	"github.com/spf13/cobra"

	"github.com/huskd/husk/internal/cli/benchcmd"
)

func newBench(a *app) *cobra.Command {
	return benchcmd.New(benchcmd.App{Out: a.out, Errs: a.errs, Socket: a.address, CleansUp: func() { a.cleansUp.Store(true) }})
}
