package systemcmd

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
	"github.com/huskd/husk/internal/version"
)

// infoView is the output of husk info.
type infoView struct {
	Client      clientView `json:"client"`
	Server      serverView `json:"server"`
	Node        string     `json:"node"`
	Mode        string     `json:"mode"` // standalone, cluster or network-only
	APIServer   string     `json:"apiServer,omitempty"`
	Manifests   string     `json:"manifests,omitempty"`
	ManifestURL string     `json:"manifestURL,omitempty"`
	// KubeletConfig are the files of a kubelet's configuration that huskd follows.
	KubeletConfig []string      `json:"kubeletConfig,omitempty"`
	Socket        string        `json:"socket"`
	Root          string        `json:"root"`
	State         string        `json:"state"`
	Storage       storageView   `json:"storage"`
	Runtimes      []runtimeView `json:"runtimes"` // the default first
	Network       networkView   `json:"network"`
	Host          hostView      `json:"host"`
	Pods          countView     `json:"pods"`
	Containers    countView     `json:"containers"`
	Images        int32         `json:"images"`
}

type clientView struct {
	Version string `json:"version"`
}

type serverView struct {
	Version   string    `json:"version"`
	Commit    string    `json:"commit"`
	GoVersion string    `json:"goVersion"`
	PID       int32     `json:"pid"`
	Started   time.Time `json:"started"`
}

type storageView struct {
	Snapshotter string `json:"snapshotter"`
	Filesystem  string `json:"filesystem"`
	TotalBytes  uint64 `json:"totalBytes"`
	FreeBytes   uint64 `json:"freeBytes"`
	ImageBytes  int64  `json:"imageBytes"`
}

type runtimeView struct {
	Handler string `json:"handler"`
	Name    string `json:"name"`
	Version string `json:"version"`
	Path    string `json:"path"`
	Problem string `json:"problem,omitempty"`
}

type networkView struct {
	Mode     string   `json:"mode"`
	CIDRs    []string `json:"cidrs"`
	MTU      int32    `json:"mtu"`
	Store    string   `json:"store"`
	Backend  string   `json:"backend"`
	CNI      []string `json:"cni"`
	Policies bool     `json:"policies"`
	Services bool     `json:"services"`
	Problem  string   `json:"problem,omitempty"`
}

type hostView struct {
	OS           string   `json:"os"`
	Kernel       string   `json:"kernel"`
	Architecture string   `json:"architecture"`
	CPUs         int32    `json:"cpus"`
	MemoryBytes  int64    `json:"memoryBytes"`
	Cgroups      string   `json:"cgroups"`
	CgroupDriver string   `json:"cgroupDriver"`
	Security     []string `json:"security"`
}

type countView struct {
	Running int32 `json:"running"`
	Total   int32 `json:"total"`
}

func viewOf(r *huskv1.InfoResponse) infoView {
	storage, network, host := r.GetStorage(), r.GetNetwork(), r.GetHost()
	v := infoView{
		Client: clientView{version.Version}, Server: serverView{r.Version, r.Commit, r.GoVersion, r.Pid, time.Unix(0, r.StartedNs).UTC()},
		Node: r.Node, Mode: r.Mode, APIServer: r.ApiServer, Manifests: r.Manifests, ManifestURL: r.ManifestUrl, KubeletConfig: r.KubeletConfig, Socket: r.Socket, Root: r.Root, State: r.State,
		Storage:  storageView{storage.GetSnapshotter(), storage.GetFilesystem(), storage.GetTotalBytes(), storage.GetFreeBytes(), storage.GetImageBytes()},
		Runtimes: []runtimeView{},
		Network: networkView{
			network.GetMode(), orEmpty(network.GetCidrs()), network.GetMtu(), network.GetStore(), network.GetBackend(), orEmpty(network.GetCni()),
			network.GetPolicies(), network.GetServices(), network.GetProblem(),
		},
		Host: hostView{
			host.GetOs(), host.GetKernel(), host.GetArchitecture(), host.GetCpus(), host.GetMemoryBytes(), host.GetCgroups(), host.GetCgroupDriver(), orEmpty(host.GetSecurity()),
		},
		Pods: countView{r.GetPods().GetRunning(), r.GetPods().GetTotal()}, Containers: countView{r.GetContainers().GetRunning(), r.GetContainers().GetTotal()}, Images: r.Images,
	}
	for _, h := range r.Runtimes {
		v.Runtimes = append(v.Runtimes, runtimeView{h.Handler, h.Name, h.Version, h.Path, h.Problem})
	}
	return v
}

func orEmpty(list []string) []string { return append([]string{}, list...) }

func (t *tool) info(use string) *cobra.Command {
	words := strings.Fields(use)
	cmd := &cobra.Command{
		Use:   words[len(words)-1],
		Short: "Describe this node: huskd, its storage, its network and the host.",
		Example: "husk " + use + `
husk ` + use + ` -o jsonpath={.host.cgroups}`,
		Args:              usageerror.Takes(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML, flags.JSONPath)
	cmd.RunE = t.WithClient(func(ctx context.Context, c *client.Client, _ []string) error {
		r, err := c.Info(ctx, &huskv1.InfoRequest{})
		if err != nil {
			return err
		}
		v := viewOf(r)
		return o.Print(t.Out, v, func() *render.Table { return v.table(time.Now()) })
	})
	return cmd
}

// networkOnly is the mode in which huskd runs no pods.
const networkOnly = "network-only"

func (v infoView) table(now time.Time) *render.Table {
	t := render.NewTable()
	t.Row("husk", v.Client.Version)
	t.Row("huskd", fmt.Sprintf("%s, %s, PID %d, up %s", v.Server.Version, v.Server.GoVersion, v.Server.PID, render.Age(now.Sub(v.Server.Started))))
	t.Row("node", v.Node)
	t.Row("mode", v.mode())
	for i, file := range v.KubeletConfig {
		t.Row(heading(i, "kubelet config"), file)
	}
	t.Row("socket", v.Socket)
	t.Row("root", v.Root)
	t.Row("state", v.State)
	if v.Mode != networkOnly {
		t.Row("pods", v.Pods.String())
		t.Row("containers", v.Containers.String())
		t.Row("images", fmt.Sprintf("%d, %s", v.Images, render.Size(v.Storage.ImageBytes)))
	}
	t.Row("storage", v.Storage.String())
	for i, r := range v.Runtimes {
		t.Row(heading(i, "runtimes"), r.String())
	}
	for i, line := range v.Network.lines() {
		t.Row(heading(i, "network"), line)
	}
	t.Row("cgroups", v.Host.Cgroups+", driver "+v.Host.CgroupDriver)
	t.Row("security", cmp.Or(strings.Join(v.Host.Security, ", "), "none"))
	t.Row("kernel", v.Host.Kernel)
	t.Row("os", v.Host.OS+", "+v.Host.Architecture)
	t.Row("cpus", fmt.Sprint(v.Host.CPUs))
	t.Row("memory", render.Size(v.Host.MemoryBytes))
	return t
}

// heading returns the name of a group of lines for its first line only.
func heading(i int, name string) string {
	if i > 0 {
		return ""
	}
	return name
}

// mode says where pods come from.
func (v infoView) mode() string {
	var from []string
	switch v.Mode {
	case networkOnly:
		return "network-only: the pod network of another runtime"
	case "cluster":
		from = append(from, "the API server "+cmp.Or(v.APIServer, "(not joined yet)"))
	}
	if v.Manifests != "" {
		from = append(from, "manifests in "+v.Manifests)
	}
	if v.ManifestURL != "" {
		from = append(from, v.ManifestURL)
	}
	return v.Mode + ": pods of " + strings.Join(append(from, "husk run", "CRI"), ", ")
}

func (c countView) String() string { return fmt.Sprintf("%d running of %d", c.Running, c.Total) }

func (s storageView) String() string {
	text := fmt.Sprintf("%s, %s free of %s", cmp.Or(s.Filesystem, "unknown file system"), render.Size(int64(s.FreeBytes)), render.Size(int64(s.TotalBytes)))
	if s.Snapshotter != "" {
		text = s.Snapshotter + " on " + text
	}
	return text
}

func (r runtimeView) String() string {
	if r.Problem != "" {
		return cmp.Or(r.Handler, "default") + ": " + r.Problem
	}
	text := r.Name + " " + r.Version + ", " + r.Path
	if r.Handler == "" {
		return text + " (default)"
	}
	return r.Handler + ": " + text
}

func (n networkView) lines() []string {
	lines := []string{fmt.Sprintf("%s, MTU %d, pods in %s", n.Mode, n.MTU, cmp.Or(strings.Join(n.CIDRs, ", "), "no block yet"))}
	if len(n.CNI) > 0 {
		lines = []string{"CNI: " + strings.Join(n.CNI, ", ")}
	}
	if n.Problem != "" {
		lines = append(lines, "problem: "+n.Problem)
	}
	if n.Store != "none" {
		lines = append(lines, "other nodes: store "+n.Store+", backend "+cmp.Or(n.Backend, "none"))
	}
	return append(lines, "network policy "+onOff(n.Policies)+", Services "+onOff(n.Services))
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
