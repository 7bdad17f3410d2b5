// Package zone answers DNS questions about services and pods. It implements version 1.1.0 of
// Kubernetes' DNS-based service discovery
// (https://github.com/kubernetes/dns/blob/master/docs/specification.md), and adds names of pods:
//
//	NAME.NAMESPACE.svc.DOMAIN                the pod NAME, unless there is a service NAME
//	HOSTNAME.SUBDOMAIN.NAMESPACE.svc.DOMAIN  the pod, unless there is a service SUBDOMAIN
//	NAME.NAMESPACE.pod.DOMAIN                the pod NAME
//
// It is pure.
package zone

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// Version is the version of the specification.
const Version = "1.1.0"

// TTL is how long answers may be cached, in seconds.
const TTL = 5

// Service is a service, as far as names depend on it.
type Service struct {
	Namespace, Name string
	// Addresses are the cluster IPs, at most one per family. Without any, the service is headless.
	Addresses []netip.Addr
	// ExternalName is the name that the service stands for. It excludes all other fields.
	ExternalName string
	Ports        []Port
	// Endpoints are those that are ready or published nevertheless.
	Endpoints []Endpoint
}

// Port is a port of a service or an endpoint. Only ports with a name have SRV records.
type Port struct {
	Name     string
	Protocol string // tcp, udp or sctp, in any case
	Number   uint16
}

// Endpoint is an endpoint of a service.
type Endpoint struct {
	// Hostname may be empty. Then the address stands for it.
	Hostname  string
	Addresses []netip.Addr
	Ports     []Port
}

// Pod is a pod with addresses.
type Pod struct {
	Namespace, Name     string
	Hostname, Subdomain string // as in its spec; Subdomain may be empty
	Addresses           []netip.Addr
}

// Config configures a Zone.
type Config struct {
	Domain string // such as cluster.local
	// Server is the name server's address.
	Server netip.Addr
	// Reverse are the subnets of which the zone knows all addresses.
	Reverse []netip.Prefix
}

// Zone has the records of services and pods at one moment. It is not changed once it is made.
type Zone struct {
	cfg    Config
	domain string // canonical
	nodes  map[string]*node
	names  map[netip.Addr][]string // for PTR
}

// node has the records of a name, which may be none if there are names below it.
type node struct {
	addresses []netip.Addr
	services  []target
	alias     string
	text      string
}

// target is what an SRV record leads to.
type target struct {
	name string
	port uint16
}

// Reply is the answer to a question.
type Reply struct {
	Rcode             int
	Answer, Ns, Extra []dns.RR
	// Alias, if set, is a name outside of the zone. Its records complete the answer.
	Alias string
}

// New returns the zone of the services and pods.
func New(cfg Config, services []Service, pods []Pod) *Zone {
	z := &Zone{cfg: cfg, domain: dns.CanonicalName(cfg.Domain), nodes: map[string]*node{}, names: map[netip.Addr][]string{}}
	z.nodes[z.domain] = &node{}
	z.at("svc." + z.domain)
	z.at("pod." + z.domain)
	z.at("dns-version." + z.domain).text = Version
	if cfg.Server.IsValid() {
		z.addAddress(z.nameServer(), cfg.Server)
		z.addName(cfg.Server, z.nameServer())
	}
	taken := map[string]bool{} // names of services
	for _, s := range services {
		taken[z.service(s.Namespace, s.Name)] = true
		z.addService(s)
	}
	for _, p := range pods {
		z.addPod(p, taken)
	}
	return z
}

func (z *Zone) nameServer() string { return "ns.dns." + z.domain }

func (z *Zone) service(namespace, name string) string {
	return dns.CanonicalName(name + "." + namespace + ".svc." + z.domain)
}

// at returns the node of a canonical name of the zone. If it is new, so may be those above it.
func (z *Zone) at(name string) *node {
	n := z.nodes[name]
	if n != nil {
		return n
	}
	n = &node{}
	z.nodes[name] = n
	if i := strings.IndexByte(name, '.'); i >= 0 && i+1 < len(name) {
		z.at(name[i+1:])
	}
	return n
}

// addAddress adds an address of a name. A name that DNS can't have is left out.
func (z *Zone) addAddress(name string, a netip.Addr) {
	if _, ok := dns.IsDomainName(name); !ok {
		return
	}
	if n := z.at(name); !slices.Contains(n.addresses, a) {
		n.addresses = append(n.addresses, a)
	}
}

// addName adds a name of an address.
func (z *Zone) addName(a netip.Addr, name string) {
	if _, ok := dns.IsDomainName(name); ok && !slices.Contains(z.names[a], name) {
		z.names[a] = append(z.names[a], name)
	}
}

func (z *Zone) addService(s Service) {
	name := z.service(s.Namespace, s.Name)
	if s.ExternalName != "" {
		if alias := dns.CanonicalName(s.ExternalName); isName(name) && isName(alias) {
			z.at(name).alias = alias
		}
		return
	}
	for _, a := range s.Addresses {
		z.addAddress(name, a)
		z.addName(a, name)
	}
	headless := len(s.Addresses) == 0
	if !headless {
		z.addPorts(name, name, s.Ports)
	}
	for _, e := range s.Endpoints {
		for _, a := range e.Addresses {
			host := e.Hostname
			if host == "" {
				host = dashed(a)
			}
			host = dns.CanonicalName(host + "." + name)
			z.addAddress(host, a)
			if headless {
				z.addAddress(name, a)
				z.addName(a, host)
				z.addPorts(name, host, e.Ports)
			}
		}
	}
}

// addPorts adds the SRV records of ports below name, which lead to host.
func (z *Zone) addPorts(name, host string, ports []Port) {
	for _, p := range ports {
		srv := dns.CanonicalName("_" + p.Name + "._" + p.Protocol + "." + name)
		if p.Name == "" || !isName(srv) || !isName(host) {
			continue
		}
		n, t := z.at(srv), target{host, p.Number}
		if !slices.Contains(n.services, t) {
			n.services = append(n.services, t)
		}
	}
}

func (z *Zone) addPod(p Pod, services map[string]bool) {
	own := dns.CanonicalName(p.Name + "." + p.Namespace + ".pod." + z.domain)
	names := []string{own}
	// With a dot in the name of the pod it could be that of an endpoint.
	if bare := z.service(p.Namespace, p.Name); !services[bare] && !strings.Contains(p.Name, ".") {
		names = append(names, bare)
	}
	if subdomain := z.service(p.Namespace, p.Subdomain); p.Subdomain != "" && !services[subdomain] {
		names = append(names, dns.CanonicalName(p.Hostname+"."+subdomain))
	}
	for _, a := range p.Addresses {
		for _, name := range names {
			z.addAddress(name, a)
		}
		if len(z.names[a]) == 0 {
			z.addName(a, own)
		}
	}
}

func isName(s string) bool {
	_, ok := dns.IsDomainName(s)
	return ok
}

// dashed returns the label that stands for an address.
func dashed(a netip.Addr) string {
	return strings.NewReplacer(".", "-", ":", "-").Replace(a.String())
}

// undashed is the inverse of dashed.
func undashed(label string) (netip.Addr, bool) {
	for _, separator := range []string{".", ":"} {
		if a, err := netip.ParseAddr(strings.ReplaceAll(label, "-", separator)); err == nil && dashed(a) == label {
			return a, true
		}
	}
	return netip.Addr{}, false
}
