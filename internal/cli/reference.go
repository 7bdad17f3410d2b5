package cli

import "github.com/huskd/husk/internal/cli/help"

// Reference returns docs/reference/cli.md, generated from the commands themselves.
func Reference() string { return help.Reference(newRoot(&app{})) }
