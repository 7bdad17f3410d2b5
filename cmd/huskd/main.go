// Command huskd runs pods on a node. See docs/reference/config.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/daemon"
)

func main() {
	// Before the first moment at which systemd may send it. A user who ran huskd with nohup ignores
	// it.
	hangups := make(chan os.Signal, 1)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(hangups, syscall.SIGHUP)
	}
	cfg, err := config.Parse(os.Args[1:], os.Stdout)
	if errors.Is(err, pflag.ErrHelp) {
		return
	}
	code := 2
	if errors.Is(err, config.ErrNotYet) {
		code = 1 // so that the service manager tries again
	}
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		code, err = 1, daemon.Run(ctx, cfg, daemon.Reload{
			Signals: hangups,
			Parse:   func() (config.Config, error) { return config.Parse(os.Args[1:], io.Discard) },
		})
	}
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			fmt.Fprintln(os.Stderr, "huskd: "+strings.TrimSuffix(line, "\n"))
		}
		os.Exit(code)
	}
}
