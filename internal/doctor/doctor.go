// Package doctor examines the host and says what was found, what follows and
// what to do about it. Check is what a person reads; nothing is changed.
package doctor

import (
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cni"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/network"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/monitor"
)

// Host is what is examined.
type Host struct {
	Facts    host.Facts
	Handlers monitor.Handlers
	// Named are all handlers that pods can name.
	Named   []oci.Handler
	Network *network.Network
	CNI     *cni.Host
	Root    string
	// Orphans are directories of pods that no record speaks of, and why they stay.
	Orphans map[string]error
}

// The levels of a check.
const (
	ok   = "ok"
	note = "note" // works, with a difference
	warn = "warn" // may hurt
	fail = "fail" // something won't work
)

// Examine returns a check of everything that pods depend on.
func Examine(h Host) []*huskv1.Check {
	var d diagnosis
	d.runtime(h)
	d.kernel(h.Facts)
	d.cgroups(h.Facts.Cgroup)
	d.privileges(h.Facts)
	d.cni(h.CNI)
	d.network(h.Network)
	d.disk(h.Root)
	d.orphans(h.Orphans)
	d.self()
	return d.checks
}

type diagnosis struct{ checks []*huskv1.Check }

func (d *diagnosis) add(name, level, finding, remedy string) {
	d.checks = append(d.checks, &huskv1.Check{Name: name, Level: level, Finding: finding, Remedy: remedy})
}

func (d *diagnosis) runtime(h Host) {
	if h.Handlers.Missing != nil {
		d.add("runtime", fail, h.Handlers.Missing.Error(), "no container can be started until then; restart huskd afterwards")
	} else {
		r := h.Handlers.Default
		d.add("runtime", ok, fmt.Sprintf("%s %s under %s", r.Name, r.Version, r.Conmon), "")
		if r.NoUserNamespaces != "" {
			d.add("user namespaces", note, fmt.Sprintf("%s can't run pods with hostUsers: false: %s", r.Name, r.NoUserNamespaces), "")
		}
	}
	for _, r := range h.Handlers.Rejected {
		d.add("runtime", note, fmt.Sprintf("%s is not used: %s", r.Name, r.Why), "")
	}
	for _, r := range h.Named {
		if r.Missing != nil {
			d.add("runtime handler", fail, r.Missing.Error(), "no pod that names it can be started until then; restart huskd afterwards")
		} else {
			d.add("runtime handler", ok, fmt.Sprintf("%s is %s %s, %s", r.Name, r.Runtime, r.Version, r.Path), "")
		}
	}
}

func (d *diagnosis) orphans(left map[string]error) {
	for _, path := range slices.Sorted(maps.Keys(left)) {
		d.add("pod directories", warn, fmt.Sprintf("%s is of a pod that no record speaks of, and stays: %v", path, left[path]), "remove it")
	}
}

func (d *diagnosis) kernel(f host.Facts) {
	d.add("kernel", ok, fmt.Sprintf("Linux %s, %d CPUs, %d MiB of memory", f.Kernel, f.CPUs, f.Memory>>20), "")
	if !f.Overlay {
		d.add("overlayfs", fail, "the kernel has no overlayfs, so that no image can be mounted", "load the module overlay")
	}
	if !f.Seccomp {
		d.add("seccomp", warn, "the kernel has no seccomp filters: containers run without a profile", "use a kernel with CONFIG_SECCOMP_FILTER")
	}
	if !f.RecursiveReadOnly {
		d.add("read-only mounts", note, "mounts can't be made read-only with all below them (Linux 5.12 can)", "")
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
		d.add("swap", note, "swap isn't accounted: a memory limit doesn't bound it", "boot with swapaccount=1 to change that")
	}
}

func (d *diagnosis) privileges(f host.Facts) {
	if f.OOMScoreFloor > -1000 {
		d.add("oom score", note, fmt.Sprintf("oom_score_adj can't be lowered below %d (no CAP_SYS_RESOURCE): containers that ask for less get that", f.OOMScoreFloor), "")
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

func (d *diagnosis) network(n *network.Network) {
	settings, err := n.Settings()
	if err == nil {
		err = n.Status()
	}
	if err != nil {
		d.add("network", fail, err.Error(), "")
	}
	var subnets []string
	for _, p := range settings.Subnets {
		subnets = append(subnets, p.String())
	}
	uplink := settings.Uplink
	if uplink == "" {
		uplink = "none: pods reach this node only"
	}
	d.add("network", ok, fmt.Sprintf("%s on %s, MTU %d, uplink %s", settings.Mode, strings.Join(subnets, " and "), settings.MTU, uplink), "")
	for _, text := range settings.Notes {
		d.add("network", note, text, "")
	}
	usage := n.Usage()
	for _, r := range usage.Ranges {
		d.add("addresses", ok, fmt.Sprintf("%s: %d in use, %d in quarantine, %d free", r.Range, r.Used, r.Quarantined, r.Free), "")
	}
	for _, debt := range usage.Debts {
		finding := fmt.Sprintf("the link of pod %s is still to be deleted, since %s", debt.Pod, debt.Since.Format("15:04:05"))
		if debt.Error != "" {
			d.add("network", warn, finding+": "+debt.Error, "it is tried again; its address isn't given to anybody until then")
		}
	}
	firewalls, err := n.BlockingFirewalls()
	if err != nil {
		d.add("firewall", warn, "the node's firewall could not be read: "+err.Error(), "")
	}
	for _, b := range firewalls {
		d.add("firewall", fail, b.String()+", so that pods reach nothing and nothing reaches them", strings.Join(b.Fix, "; "))
	}
	if err == nil && len(firewalls) == 0 {
		d.add("firewall", ok, "forwarded packets of pods pass", "")
	}
}

// cni tells of the networks that are used instead of the built-in one, if any
// are configured.
func (d *diagnosis) cni(h *cni.Host) {
	now := h.Networks()
	for _, s := range now.Skipped {
		d.add("CNI", warn, s.File+" is skipped: "+s.Why, "")
	}
	if now.Stale != "" {
		d.add("CNI", warn, "the last good configuration is kept: "+now.Stale, "")
	}
	for _, n := range now.Networks {
		d.add("CNI", ok, fmt.Sprintf("network %s of %s, cniVersion %s", n.List.Name, n.File, n.List.CNIVersion), "")
	}
	if now.Err != nil || len(now.Networks) > 0 {
		if err := h.Status(context.Background()); err != nil {
			d.add("CNI", fail, err.Error(), "no pod gets a network until then")
		}
	}
	for _, a := range h.Attachments() {
		if a.Owed() {
			d.add("CNI", warn, fmt.Sprintf("interface %s of pod %s is still to be detached from network %s, since %s, tried %d times: %s", a.IfName, a.Pod, a.Network, a.Since.Format("15:04:05"), a.Tries, a.Error), "it is tried again")
		}
	}
}

// lowDisk is the share of free space below which images and logs soon fail.
const lowDisk = 0.05

func (d *diagnosis) disk(root string) {
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil {
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

// self tells what huskd itself uses, where a leak would show.
func (d *diagnosis) self() {
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		d.add("huskd", warn, err.Error(), "")
		return
	}
	d.add("huskd", ok, fmt.Sprintf("%d goroutines, %d open files", runtime.NumGoroutine(), len(files)), "")
}
