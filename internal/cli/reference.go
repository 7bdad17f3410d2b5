package cli

import (
	"github.com/spf13/cobra"

	"github.com/huskd/husk/internal/cli/help"
)

// Reference returns docs/reference/cli.md, generated from the commands themselves.
func Reference() string { return help.Reference(newRoot(&app{})) }

// Command returns the command line, from which man pages and completion scripts are generated. Its
// commands can't be run, apart from completion.
func Command() *cobra.Command { return newRoot(&app{}) }
