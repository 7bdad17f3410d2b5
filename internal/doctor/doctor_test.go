package doctor

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/cni"
	"github.com/huskd/husk/internal/cni/conf"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/network"
	"github.com/huskd/husk/internal/network/connlimit"
	"github.com/huskd/husk/internal/network/conntrack"
	"github.com/huskd/husk/internal/network/ipam"
	"github.com/huskd/husk/internal/network/preflight"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/monitor"
	"github.com/huskd/husk/internal/pod"
)

// good is a host on which everything works.
func good() host.Facts {
	return host.Facts{
		Kernel: "6.1", CPUs: 2, Memory: 4 << 30, OOMScoreFloor: -1000,
		Seccomp: true, AppArmor: true, Overlay: true, RecursiveReadOnly: true, IPv6: true,
		Cgroup: host.Cgroup{Mode: host.CgroupV2, Controllers: []string{"cpu", "memory", "pids"}, Swap: true},
	}
}

// facts returns a function that examines a good host with a change.
func facts(change func(*host.Facts)) func(*diagnosis) {
	f := good()
	change(&f)
	return func(d *diagnosis) {
		d.kernel(f)
		d.cgroups(f.Cgroup)
		d.privileges(f)
	}
}

// TestFindings: each finding has its level, its message and its remedy.
func TestFindings(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	web := pod.Attachment{Pod: pod.Ref{Namespace: "default", Name: "web"}, IfName: "eth0"}
	runc := monitor.Runtime{Name: "runc", Version: "1.1.5", Conmon: "/usr/bin/conmon"}
	list := &libcni.NetworkConfigList{Name: "lan", CNIVersion: "1.0.0"}
	subnets := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/64")}
	usual := []string{"ok kernel: Linux 6.1, 2 CPUs, 4096 MiB of memory", "ok cgroups: v2 with cpu, memory, pids", "ok security modules: AppArmor"}
	var d diagnosis
	facts(func(*host.Facts) {})(&d)
	if got := texts(d); !slices.Equal(got, usual) {
		t.Errorf("a good host: got %q, want %q", got, usual)
	}
	for name, c := range map[string]struct {
		examine func(*diagnosis)
		want    []string // as texts returns them, without the usual ones
	}{
		"no overlayfs": {facts(func(f *host.Facts) { f.Overlay = false }), []string{
			"fail overlayfs: the kernel has no overlayfs, so no image can be mounted -> load the module overlay"}},
		"no names": {func(d *diagnosis) {
			facts(func(*host.Facts) {})(d)
			d.names(errors.New("listen udp 169.254.64.1:53: bind: address already in use"), nil)
		}, []string{
			`fail DNS: pods don't find each other by name: listen udp 169.254.64.1:53: bind: address already in use -> see which program has the port: ss -lnptu sport = 53; let it listen on fewer addresses, or set dns = "off"`}},
		"images for all": {func(d *diagnosis) {
			facts(func(*host.Facts) {})(d)
			d.images(true)
		}, []string{
			`note images: every pod may use every image of the node, also those that were pulled with the login of another pod -> if pods distrust each other: remove image-pull-credentials-verification-policy = "NeverVerify" from the configuration`}},
		"no seccomp": {facts(func(f *host.Facts) { f.Seccomp = false }), []string{
			"warn seccomp: the kernel has no seccomp filters: containers run without a profile -> use a kernel with CONFIG_SECCOMP_FILTER"}},
		"old kernel": {facts(func(f *host.Facts) { f.RecursiveReadOnly, f.IPv6 = false, false }), []string{
			"note read-only mounts: the kernel can't make a mount read-only with all mounts below it: that needs Linux 5.12",
			"note IPv6: the kernel has no IPv6: pods get IPv4 addresses only"}},
		"no cgroups": {facts(func(f *host.Facts) { f.Cgroup = host.Cgroup{Mode: host.CgroupNone} }), []string{
			"fail cgroups: no cgroup hierarchy is mounted -> mount -t cgroup2 none /sys/fs/cgroup"}},
		"a controller less": {facts(func(f *host.Facts) { f.Cgroup.Controllers = []string{"cpu", "pids"} }), []string{
			"ok cgroups: v2 with cpu, pids", "warn cgroups: the controller memory is missing: limits of it are not enforced"}},
		"no swap accounting": {facts(func(f *host.Facts) { f.Cgroup.Swap = false }), []string{
			"note swap: swap isn't accounted: memory limits don't include it -> boot with swapaccount=1 to change that"}},
		"few privileges": {facts(func(f *host.Facts) { f.OOMScoreFloor, f.AppArmor = 100, false }), []string{
			"note oom score: oom_score_adj can't be lowered below 100 (no CAP_SYS_RESOURCE): containers that request less get this value",
			"note security modules: neither AppArmor nor SELinux is in use: profiles and labels are not applied"}},

		"pods": {func(d *diagnosis) { Room{Pods: 12, Max: 1000}.check(d) }, []string{"ok number of pods: 12 of at most 1000"}},
		"too many pods": {func(d *diagnosis) { Room{Pods: 6, Max: 6, Waiting: 3}.check(d) }, []string{
			"warn number of pods: 3 pods wait, as the node runs at most 6 -> raise max-pods in the configuration and restart huskd, or remove pods"}},
		"processes": {func(d *diagnosis) { d.tasks(Tasks{Node: 32768, Pods: 29491, Own: 7 * 4096, Others: 4096}) }, []string{
			"ok processes: pods may have 29491 of the node's 32768 processes and threads"}},
		"processes of many pods": {func(d *diagnosis) {
			d.tasks(Tasks{Node: 32768, Pods: 29491, Own: 8 * 4096, Others: 9 * 4096, Unlimited: []string{"a", "b"}})
		}, []string{
			"ok processes: pods may have 29491 of the node's 32768 processes and threads",
			"warn processes: a, b may have as many processes and threads as there are, and leave none to others -> set pids-limit and pod-pids-limit, and create the pods again",
			"note processes: the running pods may have 32768 processes and threads, each up to its limit, but all together 29491 -> raise kernel.pid_max and kernel.threads-max, or lower pod-pids-limit",
			"warn processes: the kubelet's pods may have 36864 processes and threads, and the node 32768 -> reserve pid in the kubelet's systemReserved and enforce it, set its podPidsLimit, or raise kernel.pid_max and kernel.threads-max"}},

		"no runtime": {func(d *diagnosis) { d.runtime(monitor.Handlers{Missing: errors.New("none works")}, nil) }, []string{
			"fail runtime: none works -> fix this and restart huskd: until then no container can be started"}},
		"runtimes": {func(d *diagnosis) {
			runc.NoUserNamespaces = "too old"
			d.runtime(monitor.Handlers{Default: runc, Rejected: []monitor.Rejected{{Name: "crun", Why: "broken"}}}, []oci.Handler{
				{Name: "kata", Runtime: "kata", Version: "3", Path: "/opt/kata"}, {Name: "gone", Missing: errors.New("gone is not installed")}})
		}, []string{
			"ok runtime: runc 1.1.5 under /usr/bin/conmon", "note user namespaces: runc can't run pods with hostUsers: false: too old", "note runtime: crun is not used: broken",
			"ok runtime handler: kata is kata 3, /opt/kata",
			"fail runtime handler: gone is not installed -> fix this and restart huskd: until then no pod that names it can be started"}},
		"vulnerable runtimes": {func(d *diagnosis) {
			runc := oci.Handler{Runtime: "runc", Version: "1.1.5", Path: "/usr/sbin/runc"}
			d.vulnerabilities(monitor.Runtime{Name: "runc", Version: "1.1.5", Path: "/usr/sbin/runc"}, []oci.Handler{runc, {Runtime: "crun", Version: "1.8", Path: "/usr/bin/crun"}, {Missing: errors.New("gone")}}, func(name, _, _ string) []string {
				return map[string][]string{"runc": {"CVE-1", "CVE-2"}}[name]
			})
		}, []string{
			"warn runtime: runc 1.1.5, /usr/sbin/runc, lets containers out: neither its version nor its package's changelog has the cure of CVE-1, CVE-2 -> " +
				"install runc 1.2.8, 1.3.3, 1.4.0 or later, or a package with the cures. Until then run pods that you don't trust with hostUsers: false, crun, gVisor or Kata"}},

		"network": {func(d *diagnosis) {
			d.network(network.Settings{Mode: "routed", Subnets: subnets, MTU: 1500, Uplink: "eth1", Notes: []string{"no IPv6 uplink"}}, nil)
		}, []string{"ok network: routed on 10.0.0.0/24 and fd00::/64, MTU 1500, uplink eth1", "note network: no IPv6 uplink"}},
		"no uplink": {func(d *diagnosis) {
			d.network(network.Settings{Mode: "routed", Subnets: subnets[:1], MTU: 1500}, errors.New("no route"))
		}, []string{
			"fail network: no route", "ok network: routed on 10.0.0.0/24, MTU 1500, uplink none: pods reach this node only"}},
		"no block": {func(d *diagnosis) {
			d.network(network.Settings{Mode: "ptp", Cluster: subnets, MTU: 1450, Uplink: "eth1"}, errors.New("this node has no block of pod addresses yet: no answer"))
		}, []string{
			"fail network: this node has no block of pod addresses yet: no answer", "ok network: ptp on no subnet yet, MTU 1450, uplink eth1"}},
		"addresses": {func(d *diagnosis) {
			d.addresses(network.Usage{
				Ranges: []ipam.Usage{{Range: subnets[0], Used: 1, Quarantined: 2, Free: 3}},
				Debts:  []pod.Debt{{Attachment: web, Since: at}, {Attachment: web, Since: at, Error: "device busy"}},
			})
		}, []string{
			"ok addresses: 10.0.0.0/24: 1 in use, 2 in quarantine, 3 free",
			"warn network: the link of pod default/web has been waiting to be deleted since 03:04:05: device busy -> huskd retries; the pod's address isn't assigned until then"}},
		"damaged": {func(d *diagnosis) {
			d.damages([]network.Damage{{Pod: web.Pod, Differences: []string{"link v: missing", "route r: missing"}}}, errors.New("denied"))
		}, []string{
			"warn network: the networks of pods can't be read: denied",
			"warn network: the network of pod default/web was changed: link v: missing, route r: missing -> restart huskd, which repairs it or logs why not"}},
		"connections": {func(d *diagnosis) {
			d.connections(connlimit.Usage{Size: conntrack.Size{Entries: 799, Max: 1000}}, nil)
			d.connections(connlimit.Usage{Size: conntrack.Size{Entries: 5000}}, nil) // no limit
			d.connections(connlimit.Usage{}, errors.New("denied"))
		}, []string{
			"ok connections: 799 of 1000 entries of the connection tracking table are in use",
			"ok connections: 5000 entries of the connection tracking table are in use",
			"warn connections: denied"}},
		"crowded": {func(d *diagnosis) {
			d.connections(connlimit.Usage{Size: conntrack.Size{Entries: 800, Max: 1000}, Refused: []connlimit.Refusal{{Pod: "default/web", Held: 450, Limit: 400}}}, nil)
		}, []string{
			"warn connections: pod default/web begins no connections: it holds 450 entries of the connection tracking table, and its share was 400 -> see what opens them: conntrack -L; if they are needed, set net.netfilter.nf_conntrack_max higher",
			"warn connections: 800 of 1000 entries of the connection tracking table are in use: when it is full, new connections of the node and of pods fail -> see what opens them: conntrack -L; if they are needed, set net.netfilter.nf_conntrack_max higher"}},
		"open firewall":       {func(d *diagnosis) { d.firewall(nil, nil) }, []string{"ok firewall: forwarded packets of pods pass"}},
		"unreadable firewall": {func(d *diagnosis) { d.firewall(nil, errors.New("denied")) }, []string{"warn firewall: the node's firewall can't be read: denied"}},
		"closed firewall": {func(d *diagnosis) {
			d.firewall([]preflight.BlockingFirewall{{Where: "table filter, chain FORWARD", Fix: []string{"iptables -A x", "iptables -A y"}}}, nil)
		}, []string{"fail firewall: table filter, chain FORWARD drops forwarded packets, so pods reach nothing and nothing reaches them -> iptables -A x; iptables -A y"}},

		"CNI": {func(d *diagnosis) {
			d.cni(conf.State{Stale: "bad file", Found: conf.Found{
				Networks: []conf.Network{{File: "10-lan.conflist", List: list}}, Skipped: []conf.Skipped{{File: "20.conf", Why: "no name"}},
			}}, errors.New("plugin missing"))
			d.debts([]cni.Attachment{
				{Attachment: web, Network: "lan", State: "attached"},
				{Attachment: web, Network: "lan", State: "deleting", Since: at, Tries: 2, Error: "exit 1"},
			})
		}, []string{
			"warn CNI: 20.conf is skipped: no name", "warn CNI: the last good configuration is kept: bad file", "ok CNI: network lan of 10-lan.conflist, cniVersion 1.0.0",
			"fail CNI: plugin missing -> no pod gets a network until this is fixed",
			"warn CNI: interface eth0 of pod default/web can't be detached from network lan since 03:04:05, tried 2 times: exit 1 -> huskd retries"}},

		"disk": {func(d *diagnosis) { d.disk("/r", unix.Statfs_t{Bsize: 1 << 20, Blocks: 100, Bavail: 50}, nil) }, []string{"ok disk: 50 MiB are free below /r"}},
		"full disk": {func(d *diagnosis) { d.disk("/r", unix.Statfs_t{Bsize: 1 << 20, Blocks: 100, Bavail: 4}, nil) }, []string{
			"warn disk: 4 MiB are free below /r -> husk image prune --all frees what no container uses"}},
		"no inodes": {func(d *diagnosis) {
			d.disk("/r", unix.Statfs_t{Bsize: 1 << 20, Blocks: 100, Bavail: 50, Files: 100, Ffree: 4}, nil)
		}, []string{"warn disk: 4 of 100 inodes are free below /r -> husk image prune --all frees what no container uses"}},
		"no disk": {func(d *diagnosis) { d.disk("/r", unix.Statfs_t{}, unix.ENOENT) }, []string{"fail disk: statfs /r: no such file or directory"}},
		"manifests": {func(d *diagnosis) {
			d.manifests([]string{"/m/a.yaml:4: pod default/a: no"}, []string{"README", "web.yaml~"})
		}, []string{
			"warn manifests: /m/a.yaml:4: pod default/a: no",
			"note manifests: README, web.yaml~: not read, because manifests end with .yaml, .yml or .json"}},
		"orphans": {func(d *diagnosis) {
			d.orphans(map[string]error{"/r/pods/y": errors.New("busy"), "/r/pods/x": errors.New("not empty")})
		}, []string{
			"warn pod directories: /r/pods/x belongs to a pod that has no record, and was kept: not empty -> remove it",
			"warn pod directories: /r/pods/y belongs to a pod that has no record, and was kept: busy -> remove it"}},
	} {
		var d diagnosis
		c.examine(&d)
		got := slices.DeleteFunc(texts(d), func(text string) bool { return slices.Contains(usual, text) })
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

// texts returns each check as "LEVEL NAME: FINDING -> REMEDY", without the arrow if there is no
// remedy.
func texts(d diagnosis) (out []string) {
	for _, c := range d.checks {
		text := c.Level + " " + c.Name + ": " + c.Finding
		if c.Remedy != "" {
			text += " -> " + c.Remedy
		}
		out = append(out, text)
	}
	return out
}

func TestSelf(t *testing.T) {
	t.Parallel()
	var d diagnosis
	d.self()
	if len(d.checks) != 1 || d.checks[0].Level != ok || !strings.Contains(d.checks[0].Finding, "goroutines") {
		t.Errorf("got %v", d.checks)
	}
}
