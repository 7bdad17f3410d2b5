// Package netcmd has the commands of husk net: CNI networks by hand, on any
// namespace. They need no huskd, and are the only ones that touch the host
// themselves.
package netcmd

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cni"
	"github.com/huskd/husk/internal/netns"
)

// App is what the commands need of the command line that they are part of.
type App struct {
	Out, Errs io.Writer
	// Takes makes the Args of a command with that many arguments, called what.
	Takes func(low, high int, what string) cobra.PositionalArgs
	// Group makes cmd one that only groups others.
	Group func(cmd *cobra.Command)
	// Shows gives cmd the flag -o and returns what shows a value by it.
	Shows func(cmd *cobra.Command) func(v any, table func() *render.Table) error
	Huskd Huskd
	// Pod asks huskd for the path of a pod's network namespace.
	Pod func(ctx context.Context, name string) (string, error)
}

// tool is what the commands share.
type tool struct {
	App
	conf, state string
	bin         []string
}

// New returns husk net.
func New(app App) *cobra.Command {
	t := &tool{App: app}
	cmd := &cobra.Command{
		Use:   "net",
		Short: "Attach namespaces to CNI networks by hand, and look into them.",
		Long: `Attach namespaces to CNI networks by hand, and look into them.

NETNS is a path that begins with / or ., a name of "ip netns", the PID of a
process, or a pod.

This needs no huskd, and is apart from what huskd does for pods, which is only
listed, by attachments and debts. What is attached is recorded in --state, so
that "del" undoes it exactly, whatever has become of the configuration since.`,
		Example: `husk net ls
husk net add web testing
husk net explain web testing`,
	}
	app.Group(cmd)
	flags := cmd.PersistentFlags()
	flags.StringVar(&t.conf, "conf-dir", "/etc/cni/net.d", "directory of the networks")
	flags.StringSliceVar(&t.bin, "bin-dir", []string{"/opt/cni/bin", "/usr/lib/cni"}, "directories of the plugins")
	flags.StringVar(&t.state, "state", "/var/lib/husk/net", "directory where attachments are recorded")
	cmd.AddCommand(t.ls(), t.validate(), t.explain(), t.add(), t.del(), t.check(), t.status(), t.version(), t.gc(), t.attachments(), t.debts())
	return cmd
}

// lockTime is how long another command that is at work is waited for.
const lockTime = 10 * time.Second

// with opens the tool for one operation.
func (t *tool) with(ctx context.Context, do func(*cni.Standalone) error) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("plugins make links and rules: root is needed, try sudo husk")
	}
	bounded, cancel := context.WithTimeout(ctx, lockTime)
	defer cancel()
	b, err := cni.OpenStandalone(bounded, filepath.Join(t.state, "journal"), cni.Config{
		Instance: "hand", State: t.state, ConfDir: t.conf, BinDirs: t.bin,
		Log: slog.New(slog.DiscardHandler), // errors tell it all
	})
	if err != nil {
		return err
	}
	err = do(b)
	return cmp.Or(err, b.Close())
}

// order is what add, del, check and explain are about.
type order struct {
	ifName string
	args   string
	caps   []string
}

func (o *order) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.ifName, "ifname", "eth0", "name of the interface")
	cmd.Flags().StringVar(&o.args, "args", "", "CNI_ARGS, as \"K=V;K=V\"")
	cmd.Flags().StringArrayVar(&o.caps, "cap", nil, "a capability's argument, as KEY=JSON")
}

// of returns the order for the arguments NETWORK and NETNS.
func (o *order) of(network, path string) (cni.Target, error) {
	out := cni.Target{Network: network, Netns: path, IfName: o.ifName, Caps: map[string]json.RawMessage{}}
	for pair := range strings.SplitSeq(o.args, ";") {
		if pair == "" {
			continue
		}
		k, v, ok := strings.Cut(pair, "=")
		if !ok || k == "" || strings.Contains(v, "=") {
			return out, fmt.Errorf("--args: %q is not K=V", pair)
		}
		out.Args = append(out.Args, [2]string{k, v})
	}
	for _, pair := range o.caps {
		k, v, ok := strings.Cut(pair, "=")
		if !ok || k == "" || !json.Valid([]byte(v)) {
			return out, fmt.Errorf("--cap: %q is not KEY=JSON", pair)
		}
		out.Caps[k] = json.RawMessage(v)
	}
	return out, nil
}

// namespace returns the path that NETNS means.
func (t *tool) namespace(ctx context.Context, s string) (string, error) {
	if strings.HasPrefix(s, "/") || strings.HasPrefix(s, ".") {
		return filepath.Abs(s)
	}
	if pid, err := strconv.Atoi(s); err == nil && pid > 0 {
		return fmt.Sprintf("/proc/%d/ns/net", pid), nil
	}
	named := filepath.Join(netns.Dir, s)
	if netns.Pinned(named) {
		return named, nil
	}
	if path, err := t.Pod(ctx, s); err == nil && path != "" {
		return path, nil
	}
	return named, fmt.Errorf("%s is neither a name in %s nor a pod with a network of its own", s, netns.Dir)
}

// print prints a JSON document, indented.
func (t *tool) print(v any) error {
	e := json.NewEncoder(t.Out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
