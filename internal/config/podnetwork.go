package config

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// The stores, which say where nodes find each other.
const (
	StoreNone       = "none"
	StoreFile       = "file"
	StoreEtcd       = "etcd"
	StoreFlannel    = "flannel"
	StoreKubernetes = "kubernetes"
)

// Values of network-policy.
const (
	PolicyAuto = "auto"
	PolicyOn   = "on"
	PolicyOff  = "off"
)

// Values of service-proxy.
const (
	ProxyAuto = "auto"
	ProxyOn   = "on"
	ProxyOff  = "off"
)

// Values of dns.
const (
	DNSAuto = "auto"
	DNSOff  = "off"
)

// PodNetwork is the configuration of the built-in network.
type PodNetwork struct {
	Network           string   `key:"network-mode" help:"how pods are connected by the built-in network: ptp (routed) or bridge"`
	Subnets           []string `key:"pod-subnets" help:"subnets of pod addresses, of this node or, with network-store, of all nodes: at most one IPv4 and one IPv6 prefix"`
	Masquerade        bool     `key:"masquerade" help:"masquerade traffic that leaves the pod subnets with the node's address"`
	Policy            string   `key:"network-policy" help:"whether network policies are enforced: on, off, or auto, which enforces them unless the API server forbids this node to read them"`
	Proxy             string   `key:"service-proxy" help:"whether connections to Services are led to their endpoints, as by kube-proxy: on, off, or auto, which does so unless there is a kubeconfig and kube-proxy has rules on this node. Without a kubeconfig, the Services are those of manifests"`
	ServiceSubnets    []string `key:"service-subnets" help:"without a kubeconfig, subnets of the addresses of Services: at most one IPv4 and one IPv6 prefix, outside of pod-subnets. A family that pod-subnets lack is not used"`
	NodePortAddresses []string `key:"node-port-addresses" help:"prefixes of the node's addresses at which Services have node ports; empty for the node's primary addresses, or without a kubeconfig for all"`
	NetworkKubeconfig string   `key:"network-kubeconfig" help:"kubeconfig by which the built-in network learns of a cluster's network policies, and with network-store kubernetes of its nodes, on a machine that huskd doesn't join to the cluster: beside a kubelet, whose own file will do, or with network-only. A node that has kubeconfig uses that one; empty for none"`
	DNS               string   `key:"dns" help:"whether pods find each other by name: auto, which serves DNS to them unless there is a kubeconfig or cluster-dns, or off"`
	PolicyLog         bool     `key:"network-policy-log" help:"log connections that network policies deny, with the names of the pods; at most ten a second"`
	Store             string   `key:"network-store" help:"where the nodes of a pod network find each other: none (this node is by itself), file, etcd, flannel (etcd with the records of flanneld, to join its network) or kubernetes"`
	Backend           string   `key:"network-backend" help:"how packets reach the pods of other nodes: host-gw, vxlan, ipip, wireguard, bgp, or auto, which takes the first of the former four that works"`
	BlockLength       int      `key:"pod-block-length" help:"prefix length of the IPv4 subnets that nodes take from pod-subnets in etcd; in a flannel network, its SubnetLen"`
	NetworkOnly       bool     `key:"network-only" help:"run no pods, and be only the pod network of another runtime, such as containerd or CRI-O with a kubelet, which finds the network in cni-conf-dir"`
	ReplaceDisplaced  bool     `key:"replace-displaced-pods" help:"give pods another address, by a new sandbox, once another node has the block of their address; otherwise they run on, and only husk ps and an event tell of it"`
	NodesFile         string   `key:"nodes-file" help:"TOML file with the nodes and their pod subnets, for network-store file"`
	Etcd
	BGP
}

// BGP says how the node speaks BGP. It is used only with network-backend bgp.
type BGP struct {
	AS          int      `key:"bgp-as" help:"number of the node's autonomous system, for network-backend bgp; nodes of the same one exchange routes with each other unless there are bgp-peers"`
	Peers       []string `key:"bgp-peers" help:"routers to exchange routes with by BGP instead, such as route reflectors or top-of-rack switches: ADDRESS=AS, ADDRESS=AS/bfd to find within a second that one is dead (RFC 5881), ADDRESS=AS/gtsm to take only packets from the same link, with a TTL of 255 (RFC 5082), or ADDRESS=AS/bfd/gtsm"`
	BGPPassword string   `key:"bgp-password-file" help:"file with the password of all BGP sessions (TCP-MD5); empty for none"`
}

// BGPPeer is a router that the node speaks BGP with.
type BGPPeer struct {
	Address netip.Addr
	AS      uint32
	BFD     bool
	GTSM    bool
}

// BGPPeers returns the configured peers.
func (b *BGP) BGPPeers() (out []BGPPeer, err error) {
	for _, s := range b.Peers {
		address, as, _ := strings.Cut(s, "=")
		as, gtsm := strings.CutSuffix(as, "/gtsm")
		as, bfd := strings.CutSuffix(as, "/bfd")
		a, err := netip.ParseAddr(address)
		n, err2 := strconv.ParseUint(as, 10, 32)
		if err != nil || err2 != nil || n == 0 || a.Zone() != "" {
			return nil, fmt.Errorf("%q is not of the form ADDRESS=AS, ADDRESS=AS/bfd, ADDRESS=AS/gtsm or ADDRESS=AS/bfd/gtsm", s)
		}
		for _, other := range out {
			if other.Address == a {
				return nil, fmt.Errorf("%v is there twice", a)
			}
		}
		out = append(out, BGPPeer{a, uint32(n), bfd, gtsm})
	}
	return out, nil
}

func (b *BGP) checkBGP(backend string, bad func(key, format string, args ...any)) {
	if b.AS < 1 || b.AS >= 1<<32-1 {
		bad("bgp-as", "%d: use 1 to %d", b.AS, uint32(1<<32-2))
	}
	if _, err := b.BGPPeers(); err != nil {
		bad("bgp-peers", "%w", err)
	}
	if backend != "bgp" && (len(b.Peers) > 0 || b.BGPPassword != "") {
		bad("network-backend", "bgp-peers and bgp-password-file need network-backend bgp")
	}
}

// Etcd says how to reach etcd. It is used only with network-store etcd and flannel.
type Etcd struct {
	EtcdEndpoints []string `key:"etcd-endpoints" help:"URLs of the members of etcd, https://HOST:2379"`
	EtcdCluster   string   `key:"etcd-cluster" help:"name of the pod network in etcd, whose keys begin with /husk/NAME/; networks that share an etcd need different ones"`
	EtcdCA        string   `key:"etcd-ca-file" help:"CA certificates of etcd; the system's if empty"`
	EtcdCert      string   `key:"etcd-cert-file" help:"client certificate for etcd"`
	EtcdKey       string   `key:"etcd-key-file" help:"private key of that certificate"`
	EtcdUser      string   `key:"etcd-user" help:"user name in etcd"`
	EtcdPassword  string   `key:"etcd-password-file" help:"file with that user's password"`
	EtcdInsecure  bool     `key:"etcd-insecure" help:"allow etcd-endpoints of other machines without TLS"`
}

// Prefixes returns the pod subnets, at most one of each address family.
func (p *PodNetwork) Prefixes() ([]netip.Prefix, error) { return prefixes(p.Subnets) }

// ServicePrefixes returns the subnets of Services, at most one of each address family that pods
// have, in the order of the pod subnets.
func (p *PodNetwork) ServicePrefixes() (out []netip.Prefix, err error) {
	pods, err := p.Prefixes()
	if err != nil {
		return nil, err
	}
	all, err := prefixes(p.ServiceSubnets)
	if err != nil {
		return nil, err
	}
	for _, of := range pods {
		for _, subnet := range all {
			if subnet.Overlaps(of) {
				return nil, fmt.Errorf("%s overlaps %s of pod-subnets: use another", subnet, of)
			}
			if a := subnet.Addr(); a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() || a.IsUnspecified() {
				return nil, fmt.Errorf("%s has addresses that no Service can have: use a private one, such as 10.203.0.0/16", subnet)
			}
			if shortest := map[bool]int{true: 8, false: 64}[subnet.Addr().Is4()]; subnet.Bits() < shortest || subnet.Bits() > subnet.Addr().BitLen()-4 {
				return nil, fmt.Errorf("%s: use a prefix length of %d to %d", subnet, shortest, subnet.Addr().BitLen()-4)
			}
			if subnet.Addr().Is4() == of.Addr().Is4() {
				out = append(out, subnet)
			}
		}
	}
	if len(out) == 0 {
		return nil, errors.New("none is of an address family of pod-subnets: give one that is")
	}
	return out, nil
}

// NodePortPrefixes returns where the node's addresses with node ports are.
func (p *PodNetwork) NodePortPrefixes() (out []netip.Prefix, err error) {
	for _, text := range p.NodePortAddresses {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%q is not a prefix such as 192.0.2.0/24 or 192.0.2.1/32", text)
		}
		out = append(out, prefix.Masked())
	}
	return out, nil
}

// prefixes reads at most one prefix of each address family.
func prefixes(texts []string) ([]netip.Prefix, error) {
	var list []netip.Prefix
	for _, s := range texts {
		prefix, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("%q is not a prefix such as 10.201.0.0/16", s)
		}
		if prefix != prefix.Masked() {
			return nil, fmt.Errorf("%s has host bits set: use %s", prefix, prefix.Masked())
		}
		for _, other := range list {
			if other.Addr().Is4() == prefix.Addr().Is4() {
				return nil, fmt.Errorf("%s and %s are of the same address family: keep one", other, prefix)
			}
		}
		list = append(list, prefix)
	}
	if len(list) == 0 {
		return nil, errors.New("is empty: give at least one prefix")
	}
	return list, nil
}

func (p *PodNetwork) checkPodNetwork(kubeconfig string, bad func(key, format string, args ...any), oneOf func(key, value string, of ...string)) {
	oneOf("network-mode", p.Network, "ptp", "bridge")
	oneOf("network-store", p.Store, StoreNone, StoreFile, StoreEtcd, StoreFlannel, StoreKubernetes)
	oneOf("network-backend", p.Backend, "auto", "host-gw", "vxlan", "ipip", "wireguard", "bgp")
	oneOf("network-policy", p.Policy, PolicyAuto, PolicyOn, PolicyOff)
	oneOf("service-proxy", p.Proxy, ProxyAuto, ProxyOn, ProxyOff)
	oneOf("dns", p.DNS, DNSAuto, DNSOff)
	if p.Policy == PolicyOn && p.Network == "bridge" {
		bad("network-policy", "packets between pods on a bridge don't meet it: use network-mode ptp")
	}
	if p.Store != StoreNone && p.Network == "bridge" {
		bad("network-mode", "bridge is for nodes by themselves: use ptp with network-store %s", p.Store)
	}
	if (p.Store == StoreFile) != (p.NodesFile != "") {
		bad("nodes-file", "set it and network-store file, or neither")
	}
	p.checkNetworkKubeconfig(kubeconfig, bad)
	for key, path := range map[string]string{"network-kubeconfig": p.NetworkKubeconfig, "nodes-file": p.NodesFile, "etcd-ca-file": p.EtcdCA, "etcd-cert-file": p.EtcdCert, "etcd-key-file": p.EtcdKey, "etcd-password-file": p.EtcdPassword, "bgp-password-file": p.BGPPassword} {
		if path != "" && !filepath.IsAbs(path) {
			bad(key, "%q is not an absolute path", path)
		}
	}
	if p.BlockLength < 16 || p.BlockLength > 29 {
		bad("pod-block-length", "%d: use 16 to 29", p.BlockLength)
	}
	if _, err := p.Prefixes(); err != nil {
		bad("pod-subnets", "%w", err)
	} else if _, err := p.ServicePrefixes(); err != nil && kubeconfig == "" && p.Proxy != ProxyOff {
		bad("service-subnets", "%w", err)
	}
	if _, err := p.NodePortPrefixes(); err != nil {
		bad("node-port-addresses", "%w", err)
	}
	p.checkBGP(p.Backend, bad)
	p.checkEtcd(p.Store == StoreEtcd || p.Store == StoreFlannel, bad)
}

func (p *PodNetwork) checkNetworkKubeconfig(kubeconfig string, bad func(key, format string, args ...any)) {
	switch enforced := p.Policy != PolicyOff && p.Network != "bridge"; {
	case p.Store == StoreKubernetes && kubeconfig == "" && p.NetworkKubeconfig == "" && p.NetworkOnly:
		bad("network-store", "kubernetes needs network-kubeconfig")
	case p.Store == StoreKubernetes && kubeconfig == "" && p.NetworkKubeconfig == "":
		bad("network-store", "kubernetes needs kubeconfig or, beside a kubelet, network-kubeconfig")
	case p.NetworkKubeconfig != "" && kubeconfig != "" && !p.NetworkOnly:
		bad("network-kubeconfig", "the network of a node uses kubeconfig: leave one of them out")
	case p.NetworkKubeconfig != "" && p.Store != StoreKubernetes && !enforced:
		bad("network-kubeconfig", "nothing uses it with network-policy off or network-mode bridge: leave it out")
	}
}

// checkNetworkOnly returns an error for each source of pods.
func (c *Config) checkNetworkOnly(bad func(key, format string, args ...any)) {
	for key, value := range map[string]string{"manifests": c.Manifests, "manifest-url": c.Web, "bootstrap-kubeconfig": c.Bootstrap} {
		if value != "" {
			bad(key, "huskd runs no pods with network-only: leave it out")
		}
	}
	if c.Kubeconfig != "" {
		bad("kubeconfig", "with network-only this machine is no node by huskd: use network-kubeconfig")
	}
}

func (e *Etcd) checkEtcd(used bool, bad func(key, format string, args ...any)) {
	if used != (len(e.EtcdEndpoints) > 0) {
		bad("etcd-endpoints", "set it and network-store etcd or flannel, or neither")
	}
	for _, s := range e.EtcdEndpoints {
		if u, err := url.Parse(s); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
			bad("etcd-endpoints", "%q is not of the form https://HOST:2379", s)
		}
	}
	if exposed := Unencrypted(e.EtcdEndpoints); len(exposed) > 0 && !e.EtcdInsecure {
		bad("etcd-endpoints", "%s is not encrypted: whoever can read it can take this node's addresses: use https", exposed[0])
	}
	if (e.EtcdCert == "") != (e.EtcdKey == "") {
		bad("etcd-cert-file", "set both it and etcd-key-file, or neither")
	}
	if (e.EtcdUser == "") != (e.EtcdPassword == "") {
		bad("etcd-user", "set both it and etcd-password-file, or neither")
	}
}

// Unencrypted returns those of etcd-endpoints that are other machines, reached without TLS.
func Unencrypted(endpoints []string) (out []string) {
	for _, s := range endpoints {
		if u, err := url.Parse(s); err == nil && u.Scheme == "http" && !OnLoopback(u.Hostname()) {
			out = append(out, s)
		}
	}
	return out
}

// OnLoopback reports whether a host's name or address is this machine's own, which nobody else
// reaches.
func OnLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// ReadPassword returns the password in the file that a key of the configuration names, without one
// none.
func ReadPassword(key, file string) (string, error) {
	if file == "" {
		return "", nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", key, err)
	}
	return strings.TrimSpace(string(text)), nil
}
