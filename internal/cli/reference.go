package cli

import "github.com/huskd/husk/internal/cli/help"

// Reference is the manual of the command line in Markdown, made from the
// commands themselves: docs/reference/cli.md.
func Reference() string { return help.Reference(newRoot(&app{})) }
