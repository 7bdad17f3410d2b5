// Command manual writes the man pages of husk and huskd and husk's completion scripts to a
// directory, laid out as below a prefix's share directory.
//
// Usage: manual DIR
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/huskd/husk/internal/cli"
	"github.com/huskd/husk/internal/config"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: manual DIR")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "manual:", err)
		os.Exit(1)
	}
}

func write(share string) error {
	if err := manPages(filepath.Join(share, "man/man1"), cli.Command(), "1", "User Commands"); err != nil {
		return err
	}
	daemon := &cobra.Command{
		Use: "huskd [flags]", Short: "run pods on this node",
		Long: config.About + `

Each flag is also a key of the file /etc/husk/huskd.toml, which huskd reads at its start if it
exists. Flags override the file.`,
		Run: func(*cobra.Command, []string) {}, DisableAutoGenTag: true,
	}
	daemon.Flags().AddFlagSet(config.Flags())
	if err := manPages(filepath.Join(share, "man/man8"), daemon, "8", "System Manager's Manual"); err != nil {
		return err
	}
	for shell, path := range map[string]string{
		"bash": "bash-completion/completions/husk",
		"zsh":  "zsh/site-functions/_husk",
		"fish": "fish/vendor_completions.d/husk.fish",
	} {
		root, script := cli.Command(), bytes.Buffer{}
		root.SetArgs([]string{"completion", shell})
		root.SetOut(&script)
		if err := root.Execute(); err != nil {
			return err
		}
		if err := writeFile(filepath.Join(share, path), script.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// manPages writes the pages of a command and all its subcommands. Their date is SOURCE_DATE_EPOCH,
// if that is set.
func manPages(dir string, root *cobra.Command, section, manual string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root.DisableAutoGenTag = true
	return doc.GenManTree(root, &doc.GenManHeader{Section: section, Source: "Husk", Manual: manual}, dir)
}

func writeFile(path string, body []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, body, 0o644)
}
