// Package plugin is Husk's pod network as a CNI plugin. It parses requests by the Container Network
// Interface, versions 0.1.0 to 1.1.0, passes them to network/daemonless, and answers as the
// specification requires.
//
// Call is the entry point. The program husk-cni connects it to environment, stdin and stdout. huskd
// calls it as a function, for configurations that name husk-cni and for programs that use its
// socket. It keeps no state between calls, so any number of these can work on the same network.
package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/huskd/husk/internal/network/daemonless"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

// Type is the plugin's name in a configuration.
const Type = "husk-cni"

// Node is the value of the key network for this node's own network, which huskd keeps.
const Node = "node"

// The operations.
const (
	Add     = "ADD"
	Del     = "DEL"
	Check   = "CHECK"
	Status  = "STATUS"
	GC      = "GC"
	Version = "VERSION"
)

// since is the version of the specification that introduced each operation.
var since = map[string]string{Add: "0.1.0", Del: "0.1.0", Check: "0.4.0", Status: "1.1.0", GC: "1.1.0"}

// Args are the parameters that a runtime passes in the environment.
type Args struct {
	Command     string `json:"command"`     // CNI_COMMAND
	ContainerID string `json:"containerID"` // CNI_CONTAINERID
	Netns       string `json:"netns"`       // CNI_NETNS, a path
	IfName      string `json:"ifname"`      // CNI_IFNAME
	Args        string `json:"args"`        // CNI_ARGS: K=V;K=V
	Path        string `json:"path"`        // CNI_PATH, unused
	// Override is CNI_NETNS_OVERRIDE, which allows the node's own namespace.
	Override string `json:"override,omitempty"`
}

// ArgsOf reads Args by getenv.
func ArgsOf(getenv func(string) string) Args {
	return Args{
		Command: getenv("CNI_COMMAND"), ContainerID: getenv("CNI_CONTAINERID"), Netns: getenv("CNI_NETNS"),
		IfName: getenv("CNI_IFNAME"), Args: getenv("CNI_ARGS"), Path: getenv("CNI_PATH"), Override: getenv("CNI_NETNS_OVERRIDE"),
	}
}

// Plugin answers calls. The zero Plugin does all the work itself, in the process's network
// namespace. Its methods may be called concurrently.
type Plugin struct {
	// Netns is the path of the node's network namespace; empty means the process's.
	Netns string
	// Forward handles calls whose configuration names the socket of a daemon. Without it, which
	// means that this is the daemon, they are handled here.
	Forward func(ctx context.Context, socket string, args Args, stdin []byte) ([]byte, error)
	// Node is the node's own network. Only huskd has it.
	Node Network
	// Quarantine is how long an address stays unused after release; 0 is the network's default,
	// negative is none.
	Quarantine time.Duration
	// Linger is for a long-lived process. If it isn't 0, DEL only ends the traffic. Deleting the
	// link takes 20 ms or more, and happens in the background, together with others that arrive
	// within this time. No call waits until sockets are closed either.
	Linger time.Duration
	Log    *slog.Logger // nil is slog.Default()

	background background
}

// Network attaches sandboxes. The errors' kinds are those of errdefs, see codeOf.
type Network interface {
	// Attach attaches a sandbox, or repairs the attachment that it has.
	Attach(ctx context.Context, a pod.Attachment) (plan.Plan, error)
	// Detach undoes Attach. It isn't an error if the sandbox isn't attached.
	Detach(ctx context.Context, sandbox string) error
	// Verify returns an error if the sandbox isn't attached as it was.
	Verify(ctx context.Context, sandbox string) (plan.Plan, error)
	// Status returns why no sandbox can be attached now.
	Status(ctx context.Context) error
	// Collect detaches all sandboxes but the live ones.
	Collect(ctx context.Context, live map[string]bool) error
}

func (p *Plugin) log() *slog.Logger {
	if p.Log == nil {
		return slog.Default()
	}
	return p.Log
}

// timeout limits a call, nearly all of which could only be spent waiting for other calls.
const timeout = time.Minute

// Call handles a request. stdin is the network configuration as a runtime passes it to a single
// plugin: with name and cniVersion, and with prevResult, runtimeConfig and valid attachments where
// they apply. It returns what to print, which is nothing for most operations. An error is always a
// *types.Error of the specification.
func (p *Plugin) Call(ctx context.Context, args Args, stdin []byte) ([]byte, error) {
	out, err := p.call(ctx, args, stdin)
	if err != nil {
		return nil, errorOf(args.Command, err)
	}
	return out, nil
}

func (p *Plugin) call(ctx context.Context, args Args, stdin []byte) ([]byte, error) {
	if args.Command == Version {
		return json.Marshal(map[string]any{"cniVersion": version.Current(), "supportedVersions": version.All.SupportedVersions()})
	}
	if err := args.check(); err != nil {
		return nil, err
	}
	c, err := parse(stdin, args)
	if err != nil {
		return nil, err
	}
	if c.Daemon != "" && p.Forward != nil {
		out, err := p.Forward(ctx, c.Daemon, args, stdin)
		var unavailable *types.Error
		if args.Command == Status && errors.As(err, &unavailable) && unavailable.Code == types.ErrTryAgainLater {
			return nil, fault(types.ErrPluginNotAvailable, "%v", err)
		}
		return out, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	n, err := p.open(c)
	if err != nil {
		return nil, err
	}
	sandbox := daemonless.SandboxOf(args.ContainerID, args.IfName)
	switch args.Command {
	case Add:
		return p.add(ctx, n, c, args)
	case Del:
		return nil, n.Detach(ctx, sandbox)
	case Check:
		made, err := n.Verify(ctx, sandbox)
		if err != nil {
			return nil, err
		}
		return nil, compare(c.PrevResult, c.CNIVersion, made)
	case Status:
		return nil, n.Status(ctx)
	}
	live := map[string]bool{}
	for _, a := range c.valid {
		live[daemonless.SandboxOf(a.ContainerID, a.IfName)] = true
	}
	return nil, n.Collect(ctx, live)
}

// open returns the network of a configuration.
func (p *Plugin) open(c *conf) (Network, error) {
	if c.Network != "" {
		if p.Node == nil {
			return nil, fault(types.ErrInvalidNetworkConfig, "network %q: set daemon to huskd's socket, which has that network", c.Network)
		}
		return p.Node, nil
	}
	cfg := c.network
	cfg.Netns, cfg.Quarantine, cfg.Log = p.Netns, p.Quarantine, p.Log
	if p.Linger == 0 {
		return daemonless.New(cfg)
	}
	cfg.Close = p.background.close
	n, err := daemonless.New(cfg)
	return lingering{n, p, cfg.Dir}, err
}

func (p *Plugin) add(ctx context.Context, n Network, c *conf, args Args) ([]byte, error) {
	prev, err := previous(c.PrevResult, c.CNIVersion)
	if err != nil {
		return nil, err
	}
	if err := args.namespace(); err != nil {
		return nil, err
	}
	a := c.attachment
	a.Sandbox = daemonless.SandboxOf(args.ContainerID, args.IfName)
	a.Netns, a.IfName = args.Netns, args.IfName
	made, err := n.Attach(ctx, a)
	if err != nil {
		return nil, err
	}
	return render(answer(prev, made, c.dns()), c.CNIVersion)
}

// lingering is a network whose links are deleted in the background.
type lingering struct {
	*daemonless.Network
	p   *Plugin
	dir string
}

// Detach ends the traffic.
func (l lingering) Detach(ctx context.Context, sandbox string) error {
	r, err := l.BeginDetach(ctx, sandbox)
	if err == nil && r != nil {
		l.p.background.add(l.p, l.dir, l.Network, r)
	}
	return err
}

// check returns an error if args are incomplete or invalid.
func (a Args) check() error {
	if _, ok := since[a.Command]; !ok {
		return fault(types.ErrInvalidEnvironmentVariables, "CNI_COMMAND %q is none of ADD, DEL, CHECK, STATUS, GC, VERSION", a.Command)
	}
	if a.Command == Status || a.Command == GC {
		return nil
	}
	var missing []string
	need := func(name, value string) {
		if value == "" {
			missing = append(missing, name)
		}
	}
	need("CNI_CONTAINERID", a.ContainerID)
	need("CNI_IFNAME", a.IfName)
	if a.Command != Del {
		need("CNI_NETNS", a.Netns)
	}
	if len(missing) > 0 {
		return fault(types.ErrInvalidEnvironmentVariables, "%s needs %s", a.Command, strings.Join(missing, ", "))
	}
	if a.Command != Del && !filepath.IsAbs(a.Netns) {
		return fault(types.ErrInvalidEnvironmentVariables, "CNI_NETNS %q: not an absolute path", a.Netns)
	}
	if err := utils.ValidateContainerID(a.ContainerID); err != nil {
		return fault(types.ErrInvalidEnvironmentVariables, "CNI_CONTAINERID %q: use letters, digits and _.-", a.ContainerID)
	}
	if err := utils.ValidateInterfaceName(a.IfName); err != nil {
		return fault(types.ErrInvalidEnvironmentVariables, "CNI_IFNAME %q: %s", a.IfName, err.Msg)
	}
	return nil
}
