package cli

import (
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/huskd/husk/internal/cli/benchcmd"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func newBench(a *app) *cobra.Command {
	return benchcmd.New(benchcmd.App{
		Out: a.out, Errs: a.errs, Misuse: usageerror.Misuse,
		Clears: func() { a.clears.Store(true) },
		Socket: a.address,
		For: func(flags *pflag.FlagSet, name string, value time.Duration, usage string) *time.Duration {
			d := duration(value)
			flags.Var(&d, name, usage)
			return (*time.Duration)(&d)
		},
		Shows: func(cmd *cobra.Command) func(any, func() *render.Table) error {
			o := addOutput(cmd, asJSON, asYAML)
			return func(v any, table func() *render.Table) error { return a.show(*o, v, table) }
		},
	})
}
