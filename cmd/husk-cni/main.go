// Command husk-cni is Husk's pod network as a CNI plugin, see docs/reference/husk-cni.md. It does
// the work itself, or passes it to huskd if the network configuration has the key daemon. As
// husk-cni install DIR it copies itself into a runtime's plugin directory, for an image without a
// shell.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/huskd/husk/internal/atomicfile"
	"github.com/huskd/husk/internal/plugin"
	"github.com/huskd/husk/internal/plugin/rpc"
	"github.com/huskd/husk/internal/version"
)

func main() {
	// Stdout is for the answer, stderr for logs.
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println("husk-cni", version.Version)
		return
	}
	if len(os.Args) == 3 && os.Args[1] == "install" {
		if err := install(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "husk-cni: install:", err)
			os.Exit(1)
		}
		return
	}
	args := plugin.ArgsOf(os.Getenv)
	if args.Command == "" {
		fmt.Fprintln(os.Stderr, "husk-cni is run by a container runtime, which sets CNI_COMMAND.")
		fmt.Fprintln(os.Stderr, "Put it into the runtime's plugin directory, and name it in a network configuration:")
		fmt.Fprintln(os.Stderr, `    {"cniVersion": "1.0.0", "name": "pods", "type": "husk-cni", "subnet": "10.244.0.0/16"}`)
	}
	out, err := call(args)
	if err != nil {
		fail(err)
	}
	if len(out) > 0 {
		_, _ = os.Stdout.Write(append(out, '\n'))
	}
}

func call(args plugin.Args) ([]byte, error) {
	// Work in the kernel is completed or rolled back. A signal only interrupts waiting for other
	// calls.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var stdin []byte
	if args.Command != plugin.Version && args.Command != "" {
		var err error
		if stdin, err = io.ReadAll(io.LimitReader(os.Stdin, maxConf)); err != nil {
			return nil, types.NewError(types.ErrIOFailure, "read stdin: "+err.Error(), "")
		}
	}
	p := plugin.Plugin{Forward: rpc.Call[plugin.Args]}
	return p.Call(ctx, args, stdin)
}

// install copies this program into dir. A runtime that runs the plugin meanwhile runs the older or
// the newer one.
func install(dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	program, err := os.ReadFile(self)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, "husk-cni"), program, 0o755)
}

// maxConf is the maximum size of a network configuration with all its additions.
const maxConf = 4 << 20

// fail prints an error of the specification and exits.
func fail(err error) {
	var known *types.Error
	if !errors.As(err, &known) {
		known = types.NewError(types.ErrInternal, err.Error(), "")
	}
	data, _ := json.MarshalIndent(struct {
		CNIVersion string `json:"cniVersion"`
		*types.Error
	}{"1.1.0", known}, "", "    ")
	_, _ = os.Stdout.Write(append(data, '\n'))
	os.Exit(1)
}
