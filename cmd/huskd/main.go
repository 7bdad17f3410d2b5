// Command huskd runs pods on a node. See docs/reference/config.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/daemon"
)

func main() {
	cfg, err := config.Parse(os.Args[1:], os.Stdout)
	if errors.Is(err, pflag.ErrHelp) {
		return
	}
	code := 2
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		code, err = 1, daemon.Run(ctx, cfg)
	}
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			fmt.Fprintln(os.Stderr, "huskd: "+strings.TrimSuffix(line, "\n"))
		}
		os.Exit(code)
	}
}
