// Package netcmd implements husk net: attaching any network namespace to CNI networks by hand. Its
// commands work without huskd, and only they and husk bench act on the host themselves.
package netcmd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/usageerror"
	"github.com/huskd/husk/internal/cni"
	"github.com/huskd/husk/internal/netns"
)

// App is the command line that the commands are part of.
type App struct {
	Out, Errs *os.File
	// Dial connects to huskd, which knows the pods.
	Dial func() (*client.Client, error)
}

// tool is the state that the commands share.
type tool struct {
	App
	conf, state string
	bin         []string
}

// New returns the command husk net.
func New(app App) *cobra.Command {
	t := &tool{App: app}
	cmd := &cobra.Command{
		Use:   "net",
		Short: "Inspect the pod network, and attach network namespaces to CNI networks by hand.",
		Long: `Inspect the pod network, and attach network namespaces to CNI networks by hand.

NETNS is a path that begins with / or ., a name known to "ip netns", the PID of
a process, or a pod.

These commands work without huskd and don't touch what huskd does for pods;
"attachments" and "debts" list that too, and "nodes", "pools", "routes" and
"rotate-key" are about huskd's own network. Attachments are recorded in --state,
so that "del" undoes exactly what "add" did, even if the configuration has
changed.`,
		Example: `husk net ls
husk net add web testing
husk net plan web testing`,
		Args: usageerror.NoSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	flags := cmd.PersistentFlags()
	flags.StringVar(&t.conf, "conf-dir", "/etc/cni/net.d", "directory of network configurations")
	flags.StringSliceVar(&t.bin, "bin-dir", []string{"/opt/cni/bin", "/usr/lib/cni"}, "directories of CNI plugins")
	flags.StringVar(&t.state, "state", "/var/lib/husk/net", "directory where attachments are recorded")
	cmd.AddCommand(t.ls(), t.validate(), t.plan(), t.add(), t.del(), t.check(), t.status(), t.version(), t.gc(), t.attachments(), t.debts(), t.nodes(), t.pools(), t.routes(), t.rotateKey(), t.policy(), t.services(), t.explain())
	return cmd
}

// lockTimeout is how long to wait for another husk net that holds the journal.
const lockTimeout = 10 * time.Second

// with opens the networks for one operation.
func (t *tool) with(ctx context.Context, do func(*cni.Standalone) error) error {
	if os.Geteuid() != 0 {
		return errors.New("CNI plugins need root: try sudo husk")
	}
	bounded, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	s, err := cni.OpenStandalone(bounded, filepath.Join(t.state, "journal"), cni.Config{
		Instance: "hand", State: t.state, ConfDir: t.conf, BinDirs: t.bin,
		Log: slog.New(slog.DiscardHandler), // the errors say enough
	})
	if err != nil {
		return err
	}
	err = do(s)
	return cmp.Or(err, s.Close())
}

// attachFlags are the flags of add, del, check and plan.
type attachFlags struct {
	ifName string
	args   string
	caps   []string
}

func (f *attachFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.ifName, "ifname", "eth0", "name of the interface in the namespace")
	cmd.Flags().StringVar(&f.args, "args", "", "CNI_ARGS, as \"K=V;K=V\"")
	cmd.Flags().StringArrayVar(&f.caps, "cap", nil, "a capability argument, as KEY=JSON; repeatable")
}

// target returns what the flags and the arguments NETWORK and NETNS describe.
func (f *attachFlags) target(network, path string) (cni.Target, error) {
	out := cni.Target{Network: network, Netns: path, IfName: f.ifName, Caps: map[string]json.RawMessage{}}
	for pair := range strings.SplitSeq(f.args, ";") {
		if pair == "" {
			continue
		}
		k, v, ok := strings.Cut(pair, "=")
		if !ok || k == "" || strings.Contains(v, "=") {
			return out, fmt.Errorf("--args: %q is not K=V", pair)
		}
		out.Args = append(out.Args, [2]string{k, v})
	}
	for _, pair := range f.caps {
		k, v, ok := strings.Cut(pair, "=")
		if !ok || k == "" || !json.Valid([]byte(v)) {
			return out, fmt.Errorf("--cap: %q is not KEY=JSON", pair)
		}
		out.Caps[k] = json.RawMessage(v)
	}
	return out, nil
}

// namespace returns the path of the namespace that the argument NETNS names.
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
	if path, err := t.podNamespace(ctx, s); err == nil && path != "" {
		return path, nil
	}
	return named, fmt.Errorf("%s is neither a name in %s nor a pod with its own network", s, netns.Dir)
}

// print prints v as indented JSON.
func (t *tool) print(v any) error {
	e := json.NewEncoder(t.Out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
