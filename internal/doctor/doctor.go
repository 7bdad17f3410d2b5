// Package doctor examines the host and explains what it finds and what to do about it. It changes
// nothing.
package doctor

import (
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cni"
	"github.com/huskd/husk/internal/cni/conf"
	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/network"
	"github.com/huskd/husk/internal/network/datapath"
	"github.com/huskd/husk/internal/network/nodes"
	"github.com/huskd/husk/internal/network/preflight"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/monitor"
	"github.com/huskd/husk/internal/pod"
)

// Host is what Examine examines.
type Host struct {
	Facts    host.Facts
	Handlers monitor.Handlers
	// Named are the handlers that pods can name.
	Named   []oci.Handler
	Network *network.Network
	Nodes   *nodes.Controller // nil on a node by itself
	// Policy says why network policies are not in force, or not as they were written, and Services
	// why the connections of Services are not led to their endpoints.
	Policy, Services []string
	// DNS says why pods get no answers from huskd's DNS server, and Names why some get none.
	DNS   error
	Names []string
	Tasks Tasks
	Room  Room
	// Attachments are those of the running pods.
	Attachments []pod.Attachment
	CNI         *cni.Host // nil if huskd is only the network of another runtime
	Config      config.Config
	// Manifests says why files of the manifests directory are refused, and IgnoredManifests are the
	// files that aren't read.
	Manifests, IgnoredManifests []string
	// Orphans are directories of pods that have no record, and why they were kept.
	Orphans map[string]error
	// Damaged are the files with what couldn't be read of the journal.
	Damaged []string
}

// The levels of a check.
const (
	ok   = "ok"
	note = "note" // works, with a difference
	warn = "warn" // may hurt
	fail = "fail" // something doesn't work
)

// Examine checks everything that pods depend on.
func Examine(h Host) []*huskv1.Check {
	var d diagnosis
	if h.CNI != nil {
		d.pods(h)
	}
	settings, err := h.Network.Settings()
	if err == nil {
		err = h.Network.Status()
	}
	d.network(settings, err)
	d.addresses(h.Network.Usage())
	drops, err := h.Network.Paths().Dropped()
	d.drops(drops, err, settings.Table, time.Now())
	d.damages(h.Network.Damages(h.Attachments))
	d.connections(h.Network.Connections())
	for _, problem := range h.Policy {
		d.add("network policy", warn, problem, "")
	}
	for _, problem := range h.Services {
		d.add("services", warn, problem, "")
	}
	d.names(h.DNS, h.Names)
	if h.Nodes != nil {
		st := h.Nodes.Status()
		d.nodes(st, time.Now())
		d.reversePath(settings.Uplink, datapath.ReadSysctl)
		d.neighbours(st.Direct, datapath.ReadSysctl)
		d.dropped(preflight.DroppedInput(st.Incoming(settings.Uplink)))
	}
	d.firewall(h.Network.BlockingFirewalls())
	var fs unix.Statfs_t
	err = unix.Statfs(h.Config.Root, &fs)
	d.disk(h.Config.Root, fs, err)
	d.images(h.Config.Verification().Off())
	d.exposures(h.Config, unix.Stat)
	d.manifests(h.Manifests, h.IgnoredManifests)
	d.orphans(h.Orphans)
	d.journal(h.Damaged)
	d.self()
	return d.checks
}

// pods checks what only a runtime of pods needs.
func (d *diagnosis) pods(h Host) {
	d.runtime(h.Handlers, h.Named)
	d.vulnerabilities(h.Handlers.Default, h.Named, monitor.Vulnerabilities)
	d.kernel(h.Facts)
	d.cgroups(h.Facts.Cgroup)
	d.privileges(h.Facts)
	d.tasks(h.Tasks)
	h.Room.check(d)
	networks := h.CNI.Networks()
	var err error
	if networks.Err != nil || len(networks.Networks) > 0 {
		err = h.CNI.Status(context.Background())
	}
	d.cni(networks, err)
	d.debts(h.CNI.Attachments())
}

// diagnosis collects checks. Its methods check values, so that tests can pass any.
type diagnosis struct{ checks []*huskv1.Check }

func (d *diagnosis) add(name, level, finding, remedy string) {
	d.checks = append(d.checks, &huskv1.Check{Name: name, Level: level, Finding: finding, Remedy: remedy})
}

// vulnerabilities checks the programs of the handlers, each once.
func (d *diagnosis) vulnerabilities(first monitor.Runtime, named []oci.Handler, known func(name, version, path string) []string) {
	seen := map[string]bool{"": true}
	for _, r := range append([]oci.Handler{{Runtime: first.Name, Version: first.Version, Path: first.Path}}, named...) {
		if found := known(r.Runtime, r.Version, r.Path); !seen[r.Path] && len(found) > 0 {
			d.add("runtime", warn, fmt.Sprintf("%s %s, %s, lets containers out: neither its version nor its package's changelog has the cure of %s", r.Runtime, r.Version, r.Path, strings.Join(found, ", ")),
				"install runc 1.2.8, 1.3.3, 1.4.0 or later, or a package with the cures. Until then run pods that you don't trust with hostUsers: false, crun, gVisor or Kata")
		}
		seen[r.Path] = true
	}
}

func (d *diagnosis) runtime(h monitor.Handlers, named []oci.Handler) {
	if h.Missing != nil {
		d.add("runtime", fail, h.Missing.Error(), "fix this and restart huskd: until then no container can be started")
	} else {
		r := h.Default
		d.add("runtime", ok, fmt.Sprintf("%s %s under %s", r.Name, r.Version, r.Conmon), "")
		if r.NoUserNamespaces != "" {
			d.add("user namespaces", note, fmt.Sprintf("%s can't run pods with hostUsers: false: %s", r.Name, r.NoUserNamespaces), "")
		}
	}
	for _, r := range h.Rejected {
		d.add("runtime", note, fmt.Sprintf("%s is not used: %s", r.Name, r.Why), "")
	}
	for _, r := range named {
		if r.Missing != nil {
			d.add("runtime handler", fail, r.Missing.Error(), "fix this and restart huskd: until then no pod that names it can be started")
		} else {
			d.add("runtime handler", ok, fmt.Sprintf("%s is %s %s, %s", r.Name, r.Runtime, r.Version, r.Path), "")
		}
	}
}

// names checks the DNS server of pods.
func (d *diagnosis) names(err error, problems []string) {
	for _, problem := range problems {
		d.add("DNS", warn, problem, "")
	}
	if err != nil {
		d.add("DNS", fail, "pods don't find each other by name: "+err.Error(), "see which program has the port: ss -lnptu sport = 53; let it listen on fewer addresses, or set dns = \"off\"")
	}
}

// images checks which pods may use the images of the node.
func (d *diagnosis) images(unverified bool) {
	if unverified {
		d.add("images", note, "every pod may use every image of the node, also those that were pulled with the login of another pod", "if pods distrust each other: remove image-pull-credentials-verification-policy = \"NeverVerify\" from the configuration")
	}
}

// manifests checks the manifests directory.
func (d *diagnosis) manifests(problems, ignored []string) {
	for _, problem := range problems {
		d.add("manifests", warn, problem, "")
	}
	if len(ignored) > 0 {
		d.add("manifests", note, strings.Join(ignored, ", ")+": not read, because manifests end with .yaml, .yml or .json", "")
	}
}

func (d *diagnosis) orphans(left map[string]error) {
	for _, path := range slices.Sorted(maps.Keys(left)) {
		d.add("pod directories", warn, fmt.Sprintf("%s belongs to a pod that has no record, and was kept: %v", path, left[path]), "remove it")
	}
}

func (d *diagnosis) journal(damaged []string) {
	for _, file := range damaged {
		d.add("journal", warn, file+" has what couldn't be read of the journal: pods that only it recorded are gone, and policies stay as they were last in force",
			"compare husk ps, husk objects and husk net policy with what there should be, and husk run what is missing; then remove the file and restart huskd")
	}
}

func (d *diagnosis) kernel(f host.Facts) {
	d.add("kernel", ok, fmt.Sprintf("Linux %s, %d CPUs, %d MiB of memory", f.Kernel, f.CPUs, f.Memory>>20), "")
	if !f.Overlay {
		d.add("overlayfs", fail, "the kernel has no overlayfs, so no image can be mounted", "load the module overlay")
	}
	if !f.Seccomp {
		d.add("seccomp", warn, "the kernel has no seccomp filters: containers run without a profile", "use a kernel with CONFIG_SECCOMP_FILTER")
	}
	if !f.RecursiveReadOnly {
		d.add("read-only mounts", note, "the kernel can't make a mount read-only with all mounts below it: that needs Linux 5.12", "")
	}
	if !f.IPv6 {
		d.add("IPv6", note, "the kernel has no IPv6: pods get IPv4 addresses only", "")
	}
}

func (d *diagnosis) cgroups(c host.Cgroup) {
	if c.Mode == host.CgroupNone {
		d.add("cgroups", fail, "no cgroup hierarchy is mounted", "mount -t cgroup2 none /sys/fs/cgroup")
		return
	}
	d.add("cgroups", ok, fmt.Sprintf("%s with %s", c.Mode, strings.Join(c.Controllers, ", ")), "")
	for _, controller := range []string{"cpu", "memory", "pids"} {
		if !c.Has(controller) {
			d.add("cgroups", warn, "the controller "+controller+" is missing: limits of it are not enforced", "")
		}
	}
	if !c.Swap {
		d.add("swap", note, "swap isn't accounted: memory limits don't include it", "boot with swapaccount=1 to change that")
	}
}

func (d *diagnosis) privileges(f host.Facts) {
	if f.OOMScoreFloor > -1000 {
		d.add("oom score", note, fmt.Sprintf("oom_score_adj can't be lowered below %d (no CAP_SYS_RESOURCE): containers that request less get this value", f.OOMScoreFloor), "")
	}
	modules := []string{}
	if f.AppArmor {
		modules = append(modules, "AppArmor")
	}
	if f.SELinux {
		modules = append(modules, "SELinux")
	}
	if len(modules) == 0 {
		d.add("security modules", note, "neither AppArmor nor SELinux is in use: profiles and labels are not applied", "")
		return
	}
	d.add("security modules", ok, strings.Join(modules, ", "), "")
}

// network checks the built-in network: its settings, and err, which is why no pod can be attached.
func (d *diagnosis) network(s network.Settings, err error) {
	if err != nil {
		d.add("network", fail, err.Error(), "")
	}
	var subnets []string
	for _, p := range s.Subnets {
		subnets = append(subnets, p.String())
	}
	if len(subnets) == 0 {
		subnets = []string{"no subnet yet"}
	}
	uplink := s.Uplink
	if uplink == "" {
		uplink = "none: pods reach this node only"
	}
	d.add("network", ok, fmt.Sprintf("%s on %s, MTU %d, uplink %s", s.Mode, strings.Join(subnets, " and "), s.MTU, uplink), "")
	for _, text := range s.Notes {
		d.add("network", note, text, "")
	}
}

func (d *diagnosis) addresses(u network.Usage) {
	for _, r := range u.Ranges {
		d.add("addresses", ok, fmt.Sprintf("%s: %d in use, %d in quarantine, %d free", r.Range, r.Used, r.Quarantined, r.Free), "")
	}
	for _, debt := range u.Debts {
		if debt.Error != "" {
			d.add("network", warn, fmt.Sprintf("the link of pod %s has been waiting to be deleted since %s: %s", debt.Pod, debt.Since.Format("15:04:05"), debt.Error),
				"huskd retries; the pod's address isn't assigned until then")
		}
	}
}

// damages checks for pods whose part of the network was changed by others.
func (d *diagnosis) damages(list []network.Damage, err error) {
	if err != nil {
		d.add("network", warn, "the networks of pods can't be read: "+err.Error(), "")
	}
	for _, damage := range list {
		d.add("network", warn, fmt.Sprintf("the network of pod %s was changed: %s", damage.Pod, strings.Join(damage.Differences, ", ")), "restart huskd, which repairs it or logs why not")
	}
}

// crowded is the share of the connection tracking table from which on it is worth a warning.
const crowded = 0.8

// connections checks how full the connection tracking table is.
func (d *diagnosis) connections(u network.Connections, err error) {
	if err != nil {
		d.add("connections", warn, err.Error(), "")
		return
	}
	const remedy = "see what opens them: conntrack -L; if they are needed, set net.netfilter.nf_conntrack_max higher"
	for _, r := range u.Refused {
		d.add("connections", warn, r.String(), remedy)
	}
	entries := fmt.Sprint(u.Entries)
	if u.Max > 0 {
		entries = fmt.Sprintf("%d of %d", u.Entries, u.Max)
	}
	finding := entries + " entries of the connection tracking table are in use"
	if u.Max > 0 && float64(u.Entries) >= crowded*float64(u.Max) {
		d.add("connections", warn, finding+": when it is full, new connections of the node and of pods fail", remedy)
		return
	}
	d.add("connections", ok, finding, "")
}

func (d *diagnosis) firewall(blocking []preflight.BlockingFirewall, err error) {
	if err != nil {
		d.add("firewall", warn, "the node's firewall can't be read: "+err.Error(), "")
	}
	for _, b := range blocking {
		d.add("firewall", fail, b.String()+", so pods reach nothing and nothing reaches them", strings.Join(b.Fix, "; "))
	}
	if err == nil && len(blocking) == 0 {
		d.add("firewall", ok, "forwarded packets of pods pass", "")
	}
}

// cni checks the networks that are configured in place of the built-in one. Err is why they can't
// be used now.
func (d *diagnosis) cni(now conf.State, err error) {
	for _, s := range now.Skipped {
		d.add("CNI", warn, s.File+" is skipped: "+s.Why, "")
	}
	if now.Stale != "" {
		d.add("CNI", warn, "the last good configuration is kept: "+now.Stale, "")
	}
	for _, n := range now.Networks {
		d.add("CNI", ok, fmt.Sprintf("network %s of %s, cniVersion %s", n.List.Name, n.File, n.List.CNIVersion), "")
	}
	if err != nil {
		d.add("CNI", fail, err.Error(), "no pod gets a network until this is fixed")
	}
}

// debts checks for interfaces that a plugin has failed to detach.
func (d *diagnosis) debts(list []cni.Attachment) {
	for _, a := range list {
		if a.Owed() {
			d.add("CNI", warn, fmt.Sprintf("interface %s of pod %s can't be detached from network %s since %s, tried %d times: %s", a.IfName, a.Pod, a.Network, a.Since.Format("15:04:05"), a.Tries, a.Error), "huskd retries")
		}
	}
}

// lowDisk is the share of free space below which writing images and logs will soon fail.
const lowDisk = 0.05

func (d *diagnosis) disk(root string, fs unix.Statfs_t, err error) {
	if err != nil {
		d.add("disk", fail, (&os.PathError{Op: "statfs", Path: root, Err: err}).Error(), "")
		return
	}
	free := fs.Bavail * uint64(fs.Bsize)
	finding := fmt.Sprintf("%d MiB are free below %s", free>>20, root)
	switch {
	case float64(fs.Bavail) < lowDisk*float64(fs.Blocks):
		d.add("disk", warn, finding, "husk image prune --all frees what no container uses")
	case fs.Files > 0 && float64(fs.Ffree) < lowDisk*float64(fs.Files):
		d.add("disk", warn, fmt.Sprintf("%d of %d inodes are free below %s", fs.Ffree, fs.Files, root), "husk image prune --all frees what no container uses")
	default:
		d.add("disk", ok, finding, "")
	}
}

// self reports huskd's own goroutines and open files, where a leak would show.
func (d *diagnosis) self() {
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		d.add("huskd", warn, err.Error(), "")
		return
	}
	d.add("huskd", ok, fmt.Sprintf("%d goroutines, %d open files", runtime.NumGoroutine(), len(files)), "")
}
