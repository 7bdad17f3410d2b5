package daemon

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/dns/forward"
	"github.com/huskd/husk/internal/manifest/criconfig"
)

// nodeFacts returns a function that describes the node as it is when called.
func nodeFacts(d *daemon) func() criconfig.Node {
	cfg, f, r := d.cfg, d.facts, d.resources
	fixed := criconfig.Node{
		Name: nodeName(cfg), ClusterDomain: cfg.ClusterDomain, Memory: f.Memory, Allocatable: r.allocatable, Swap: r.swap, Unified: f.Cgroup.Mode.Unified(),
		HugePages: f.Cgroup.HugePages, RecursiveReadOnly: f.RecursiveReadOnly, Throttles: f.Throttles,
		InCluster: cfg.Kubeconfig != "", Logs: cfg.PodLogs, Seccomp: "/var/lib/kubelet/seccomp", SeccompUnconfined: !cfg.SeccompDefault,
	}
	return func() criconfig.Node {
		n := fixed
		n.IPs = nodeIPs(cfg)
		n.ClusterDNS = d.names.servers(cfg.ClusterDNS)
		n.Services = d.services.Effective()
		n.ResolvConf, _ = resolvConf(cfg).Read()
		return n
	}
}

// resolvConf returns the files that name the node's resolvers.
func resolvConf(cfg config.Config) forward.Files {
	files := forward.NodeFiles
	files.Main = cfg.ResolvConf
	if cfg.ResolvConf == "" {
		files.Main = os.DevNull
	}
	return files
}

// nodeIPs returns the configured addresses of the node or, without any, those from which the node
// reaches others, at most one per family. It sends no packet: connecting a datagram socket only
// looks up the route.
func nodeIPs(cfg config.Config) []string {
	var ips []string
	given, _ := cfg.NodeIPs() // Parse has checked them
	for _, ip := range given {
		if !ip.IsUnspecified() {
			ips = append(ips, ip.String())
		}
	}
	if len(ips) > 0 {
		return ips
	}
	targets := []string{"192.0.2.1:9", "[2001:db8::1]:9"}
	if len(given) > 0 && given[0].Is6() {
		slices.Reverse(targets)
	}
	for _, to := range targets {
		conn, err := net.Dial("udp", to)
		if err != nil {
			continue
		}
		if a, ok := conn.LocalAddr().(*net.UDPAddr); ok {
			ips = append(ips, a.IP.String())
		}
		_ = conn.Close()
	}
	return ips
}

// checkNodeIPs checks that the configured addresses are the machine's.
func checkNodeIPs(cfg config.Config) error {
	given, err := cfg.NodeIPs()
	if err != nil || len(given) == 0 || given[0].IsUnspecified() {
		return err
	}
	local, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	for _, ip := range given {
		if !slices.ContainsFunc(local, func(a net.Addr) bool {
			prefix, err := netip.ParsePrefix(a.String())
			return err == nil && prefix.Addr().Unmap() == ip
		}) {
			return fmt.Errorf("--node-ip: no interface of this machine has the address %s", ip)
		}
	}
	return nil
}

func nodeName(cfg config.Config) string {
	if cfg.NodeName != "" {
		return cfg.NodeName
	}
	return hostname()
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return strings.ToLower(name)
}
