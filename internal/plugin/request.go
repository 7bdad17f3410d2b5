package plugin

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

// request fills in the settings that are requested for one attachment: by capabilities, or else by
// the configuration's args, or else by CNI_ARGS.
func (c *conf) request(args Args) error {
	env, err := environment(args.Args)
	if err != nil {
		return err
	}
	a := &c.attachment
	a.Pod = pod.Ref{Namespace: env["K8S_POD_NAMESPACE"], Name: env["K8S_POD_NAME"], UID: env["K8S_POD_UID"]}
	if a.Pod.Name == "" {
		a.Pod = pod.Ref{Namespace: c.Name, Name: args.ContainerID}
	}
	a.Bandwidth = c.Runtime.Bandwidth
	a.MAC = strings.ToLower(firstOf(c.Runtime.MAC, c.Args.CNI.MAC, env["MAC"]))
	if _, err := plan.ParseMAC(a.MAC); a.MAC != "" && err != nil {
		return fault(types.ErrInvalidNetworkConfig, "mac %v", err)
	}
	ips := c.Runtime.IPs
	if len(ips) == 0 {
		ips = c.Args.CNI.IPs
	}
	if len(ips) == 0 && env["IP"] != "" {
		ips = strings.Split(env["IP"], ",")
	}
	for _, text := range ips {
		ip, err := parseAddress(text)
		if err != nil {
			return fault(types.ErrInvalidNetworkConfig, "ips: %q: not an address", text)
		}
		a.IPs = append(a.IPs, ip)
	}
	return c.ports()
}

// parseAddress parses an address with or without a prefix length.
func parseAddress(text string) (netip.Addr, error) {
	alone, _, _ := strings.Cut(strings.TrimSpace(text), "/")
	ip, err := netip.ParseAddr(alone)
	return ip.Unmap(), err
}

func firstOf(values ...string) string {
	i := slices.IndexFunc(values, func(v string) bool { return v != "" })
	if i < 0 {
		return ""
	}
	return values[i]
}

func (c *conf) ports() error {
	for _, m := range c.Runtime.PortMappings {
		if m.HostPort < 0 || m.HostPort > 65535 || m.ContainerPort < 1 || m.ContainerPort > 65535 {
			return fault(types.ErrInvalidNetworkConfig, "portMappings: hostPort %d to containerPort %d: ports go to 65535", m.HostPort, m.ContainerPort)
		}
		mapping := pod.PortMapping{Protocol: pod.Protocol(strings.ToLower(m.Protocol)), HostPort: uint16(m.HostPort), Port: uint16(m.ContainerPort)}
		if m.HostIP != "" {
			ip, err := netip.ParseAddr(m.HostIP)
			if err != nil {
				return fault(types.ErrInvalidNetworkConfig, "portMappings: hostIP %q: not an address", m.HostIP)
			}
			mapping.HostIP = ip
		}
		c.attachment.Ports = append(c.attachment.Ports, mapping)
	}
	return nil
}

// known are the keys of CNI_ARGS that are understood, or known to be irrelevant here.
var known = []string{
	"IgnoreUnknown", "K8S_POD_NAMESPACE", "K8S_POD_NAME", "K8S_POD_UID", "K8S_POD_INFRA_CONTAINER_ID", "IP", "MAC",
}

// environment parses CNI_ARGS.
func environment(text string) (map[string]string, error) {
	out := map[string]string{}
	var unknown []string
	for pair := range strings.SplitSeq(text, ";") {
		if pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, fault(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: %q is not KEY=VALUE", pair)
		}
		if !slices.Contains(known, key) {
			unknown = append(unknown, key)
		}
		out[key] = value
	}
	ignore := strings.ToLower(out["IgnoreUnknown"])
	if len(unknown) > 0 && ignore != "1" && ignore != "true" {
		return nil, fault(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: unknown key %s: leave it out, or add IgnoreUnknown=1", strings.Join(unknown, ", "))
	}
	return out, nil
}

// namespace returns an error if CNI_NETNS can't be attached.
func (a Args) namespace() error {
	var st unix.Statfs_t
	switch err := unix.Statfs(a.Netns, &st); {
	case err == unix.ENOENT:
		return fault(types.ErrUnknownContainer, "CNI_NETNS %s is gone", a.Netns)
	case err != nil:
		return fault(types.ErrInvalidEnvironmentVariables, "CNI_NETNS %s: %v", a.Netns, err)
	case st.Type != unix.NSFS_MAGIC && st.Type != unix.PROC_SUPER_MAGIC:
		return fault(types.ErrInvalidEnvironmentVariables, "CNI_NETNS %s is not a network namespace", a.Netns)
	}
	var theirs, own unix.Stat_t
	if err := unix.Stat(a.Netns, &theirs); err != nil {
		return fault(types.ErrInvalidEnvironmentVariables, "CNI_NETNS %s: %v", a.Netns, err)
	}
	override := strings.ToLower(a.Override)
	if unix.Stat("/proc/self/ns/net", &own) == nil && own.Ino == theirs.Ino && own.Dev == theirs.Dev && override != "1" && override != "true" {
		return fault(types.ErrInvalidEnvironmentVariables, "CNI_NETNS %s is the node's own network namespace", a.Netns)
	}
	return nil
}
