package node

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/nlsock"
)

// Inventory lists the objects on a node that a leak would add to, one line per object.
type Inventory struct {
	Namespaces, Links, Routes, Tables, Mounts, Processes, Cgroups, Files, Sysctls []string
}

// Inventory lists what is on the node now.
func (n *Node) Inventory() *Inventory {
	n.t.Helper()
	inv := &Inventory{
		Mounts:    n.mounts(),
		Processes: n.processes(),
		Cgroups:   n.cgroups(),
		Files:     n.files(),
	}
	names, _ := filepath.Glob(n.Path(netns.Dir + "/*"))
	for _, name := range names {
		inv.Namespaces = append(inv.Namespaces, filepath.Base(name))
	}
	if err := netns.Do(n.Net(), func() error { return inv.takeNetwork() }); err != nil {
		n.t.Fatal(err)
	}
	if l := n.Uplink; l != nil {
		// A route that names the address of before Renumber is the same one.
		for i, was := range l.Segment.at(l.Number) {
			for j := range inv.Routes {
				inv.Routes[j] = strings.ReplaceAll(inv.Routes[j], "Src: "+l.Addresses[i].Addr().String()+" ", "Src: "+was.Addr().String()+" ")
			}
		}
	}
	for _, list := range inv.lists() {
		sort.Strings(*list)
	}
	return inv
}

func (inv *Inventory) lists() map[string]*[]string {
	return map[string]*[]string{
		"network namespace": &inv.Namespaces, "link": &inv.Links, "route": &inv.Routes, "nft table": &inv.Tables,
		"mount": &inv.Mounts, "process": &inv.Processes, "cgroup": &inv.Cgroups, "file": &inv.Files, "sysctl": &inv.Sysctls,
	}
}

func (inv *Inventory) takeNetwork() error {
	links, err := nlsock.Complete(netlink.LinkList)
	if err != nil {
		return err
	}
	for _, l := range links {
		inv.Links = append(inv.Links, l.Attrs().Name)
	}
	routes, err := nlsock.Complete(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return err
	}
	for _, r := range routes {
		inv.Routes = append(inv.Routes, r.String())
	}
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	tables, err := conn.ListTables()
	if err != nil {
		return err
	}
	for _, table := range tables {
		inv.Tables = append(inv.Tables, table.Name)
	}
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv4/conf/all/route_localnet", "net/ipv4/conf/all/rp_filter"} {
		value, _ := os.ReadFile("/proc/thread-self/../../../sys/" + name)
		if value == nil {
			value, _ = os.ReadFile("/proc/sys/" + name)
		}
		inv.Sysctls = append(inv.Sysctls, name+"="+strings.TrimSpace(string(value)))
	}
	return nil
}

func (n *Node) mounts() []string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", n.Pid()))
	if err != nil {
		n.t.Fatal(err)
	}
	var points []string
	for line := range strings.Lines(string(data)) {
		point := strings.Fields(line)[4]
		if strings.HasPrefix(point, filepath.Dir(n.Dir)) && !strings.HasPrefix(point, n.Dir) {
			continue // of another test that ran when this node booted
		}
		points = append(points, point)
	}
	return points
}

// processes returns the command lines in the node's PID namespace, except init's.
func (n *Node) processes() []string {
	want, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", n.Pid()))
	if err != nil {
		n.t.Fatal(err)
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var found []string
	for _, dir := range dirs {
		if ns, err := os.Readlink(dir + "/ns/pid"); err != nil || ns != want || dir == fmt.Sprintf("/proc/%d", n.Pid()) {
			continue
		}
		if cmdline, err := os.ReadFile(dir + "/cmdline"); err == nil && len(cmdline) > 0 {
			found = append(found, strings.ReplaceAll(strings.TrimRight(string(cmdline), "\x00"), "\x00", " "))
		}
	}
	return found
}

// cgroups returns the cgroups of the node's huskd, deepest first.
func (n *Node) cgroups() []string {
	var found []string
	roots, _ := filepath.Glob("/sys/fs/cgroup/*" + n.Instance().Cgroup())
	roots = append(roots, "/sys/fs/cgroup"+n.Instance().Cgroup())
	for _, root := range roots {
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				found = append(found, path)
			}
			return nil
		})
	}
	slices.Reverse(found)
	return found
}

// What huskd keeps without any pod: keeps are images and its own bookkeeping, with everything below
// them; empty are directories that are empty then.
var (
	keeps = []string{"images", "journal", "network", "huskd.lock", "monitor/runtime.json", "monitor/runtime-steady.json", "shim/handler-sandboxed.json"}
	empty = []string{"containers", "kubelet", "kubelet/device-plugins", "kubelet/plugins_registry", "sandboxes", "logs", "logs/pods", "logs/containers", "pods", "monitor", "monitor/containers", "monitor/runtime", "monitor/runtime/runc", "monitor/runtime/crun",
		"shim", "shim/containers", "shim/bundles"}
)

func (n *Node) files() []string {
	var found []string
	for _, base := range []string{n.Root, n.Path(n.State)} {
		_ = filepath.WalkDir(base, func(path string, d fs.DirEntry, err error) error {
			if err != nil || path == base {
				return nil
			}
			rel, _ := filepath.Rel(base, path)
			switch {
			case slices.Contains(keeps, rel) && d.IsDir():
				return fs.SkipDir
			case slices.Contains(keeps, rel), slices.Contains(empty, rel) && d.IsDir():
				return nil
			}
			found = append(found, rel)
			return nil
		})
	}
	return found
}

// Left returns the objects that were not there when the node started.
func (n *Node) Left() []string { return n.Inventory().since(n.base) }

// since returns the objects that weren't in an earlier inventory.
func (inv *Inventory) since(base Inventory) (left []string) {
	before := base.lists()
	for kind, list := range inv.lists() {
		rest := slices.Clone(*before[kind])
		for _, item := range *list {
			if i := slices.Index(rest, item); i >= 0 {
				rest = slices.Delete(rest, i, i+1)
				continue
			}
			left = append(left, kind+" "+item)
		}
	}
	sort.Strings(left)
	return left
}

// NothingLeft fails the test if objects are left, after some seconds, that were not there when the
// node started. huskd must have exited.
func (n *Node) NothingLeft() {
	n.t.Helper()
	Eventually(n.t, 5*time.Second, func() string {
		if left := n.Left(); len(left) > 0 {
			return "left behind:\n  " + strings.Join(left, "\n  ")
		}
		return ""
	})
}
