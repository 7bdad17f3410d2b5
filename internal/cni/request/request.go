// Package request derives what a pod requests of its networks from its annotations and
// other properties. It is pure.
package request

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/utils"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/huskd/husk/internal/pod"
)

// The supported annotations.
const (
	// Networks lists additional networks: "a, b@net1", or a JSON list of objects
	// with name, interface, ips, mac, infiniband-guid and deviceID.
	Networks = "k8s.v1.cni.cncf.io/networks"
	// NetworksISulad is iSulad's name for Networks.
	NetworksISulad = "network.alpha.kubernetes.io/network"
	// IPs are the requested addresses of the first interface, separated by commas.
	IPs = "cni.husk.dev/ips"
	// MAC is the requested MAC address of the first interface.
	MAC = "cni.husk.dev/mac"
	// Ingress and Egress limit the pod's bandwidth in bits per second.
	Ingress = "kubernetes.io/ingress-bandwidth"
	Egress  = "kubernetes.io/egress-bandwidth"
)

// Interface is what a pod requests of one network.
type Interface struct {
	Network        string   `json:"name"` // empty for the default network
	IfName         string   `json:"interface"`
	IPs            []string `json:"ips"`
	MAC            string   `json:"mac"`
	InfinibandGUID string   `json:"infiniband-guid"`
	DeviceID       string   `json:"deviceID"`
}

// Request is what a pod requests of its networks.
type Request struct {
	First     Interface   // its IfName and Network are empty
	More      []Interface // an empty IfName stands for the next free one
	Bandwidth pod.Bandwidth
}

// Addresses returns i's IPs without prefix lengths.
func (i Interface) Addresses() []netip.Addr {
	var list []netip.Addr
	for _, s := range i.IPs {
		addr, _ := address(s)
		list = append(list, addr)
	}
	return list
}

// address parses an IP address with or without a prefix length.
func address(s string) (netip.Addr, error) {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p.Addr(), nil
	}
	return netip.ParseAddr(s)
}

// Read parses a pod's annotations.
func Read(annotations map[string]string) (Request, error) {
	var r Request
	if v := annotations[IPs]; v != "" {
		for ip := range strings.SplitSeq(v, ",") {
			r.First.IPs = append(r.First.IPs, strings.TrimSpace(ip))
		}
	}
	r.First.MAC = annotations[MAC]
	errs := []error{named(IPs, checkIPs(r.First.IPs)), named(MAC, checkMAC(r.First.MAC))}
	for _, key := range []string{Networks, NetworksISulad} {
		more, err := networks(annotations[key])
		errs = append(errs, named(key, err))
		r.More = append(r.More, more...)
	}
	var err error
	r.Bandwidth, err = bandwidth(annotations)
	return r, errors.Join(append(errs, err, r.distinct())...)
}

func named(key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("annotation %s: %w", key, err)
}

func networks(value string) ([]Interface, error) {
	value = strings.TrimSpace(value)
	if value == "" {
		return nil, nil
	}
	var list []Interface
	if strings.HasPrefix(value, "[") {
		if err := json.Unmarshal([]byte(value), &list); err != nil {
			return nil, fmt.Errorf("is not a JSON list of networks: %w", err)
		}
	} else {
		for name := range strings.SplitSeq(value, ",") {
			name, ifName, _ := strings.Cut(strings.TrimSpace(name), "@")
			// A namespace before the name is that of the network's object in the cluster.
			list = append(list, Interface{Network: name[strings.LastIndexByte(name, '/')+1:], IfName: ifName})
		}
	}
	for i, n := range list {
		err := errors.Join(checkIPs(n.IPs), checkMAC(n.MAC), checkHex("infiniband-guid", n.InfinibandGUID, 8))
		if n.Network == "" {
			err = errors.Join(err, errors.New("has no name"))
		}
		if n.IfName != "" && !validLink(n.IfName) {
			err = errors.Join(err, fmt.Errorf("%q is not a valid interface name", n.IfName))
		}
		if err != nil {
			return nil, fmt.Errorf("network %d: %w", i+1, err)
		}
	}
	return list, nil
}

func validLink(name string) bool {
	return utils.ValidateInterfaceName(name) == nil && name != "lo" && !strings.ContainsAny(name, "%\x00")
}

// distinct refuses two networks with the same interface name.
func (r Request) distinct() error {
	seen := map[string]bool{}
	for _, n := range r.More {
		if n.IfName != "" && seen[n.IfName] {
			return fmt.Errorf("two networks request interface %s", n.IfName)
		}
		seen[n.IfName] = true
	}
	return nil
}

func checkIPs(ips []string) error {
	seen := map[netip.Addr]bool{}
	for _, s := range ips {
		addr, err := address(s)
		switch {
		case err != nil, addr.Zone() != "":
			return fmt.Errorf("%q is not an IP address", s)
		case addr.IsUnspecified(), addr.IsMulticast(), addr.IsLoopback():
			return fmt.Errorf("%s is not an address that a pod can have", addr)
		case seen[addr]:
			return fmt.Errorf("%s is listed twice", addr)
		}
		seen[addr] = true
	}
	return nil
}

func checkMAC(mac string) error {
	if err := checkHex("mac", mac, 6); err != nil {
		return err
	}
	if mac != "" && strings.ContainsRune("13579bdfBDF", rune(mac[1])) {
		return fmt.Errorf("mac %q is a multicast address", mac)
	}
	return nil
}

var hex = regexp.MustCompile(`^[0-9a-fA-F]{2}(:[0-9a-fA-F]{2})*$`)

func checkHex(what, value string, bytes int) error {
	if value != "" && (!hex.MatchString(value) || len(value) != 3*bytes-1) {
		return fmt.Errorf("%s %q is not %d bytes in hex with colons", what, value, bytes)
	}
	return nil
}

// The limits of the rates that kubelet accepts, in bits per second.
var minRate, maxRate = resource.MustParse("1k"), resource.MustParse("1P")

func bandwidth(annotations map[string]string) (pod.Bandwidth, error) {
	var b pod.Bandwidth
	var errs []error
	for key, to := range map[string]struct{ rate, burst *uint64 }{
		Ingress: {&b.IngressRate, &b.IngressBurst},
		Egress:  {&b.EgressRate, &b.EgressBurst},
	} {
		value, ok := annotations[key]
		if !ok {
			continue
		}
		q, err := resource.ParseQuantity(value)
		if err != nil || q.Cmp(minRate) < 0 || q.Cmp(maxRate) > 0 {
			errs = append(errs, named(key, fmt.Errorf("%q is not a rate from 1k to 1P bits per second", value)))
			continue
		}
		*to.rate = uint64(q.Value())
		*to.burst = burst(*to.rate)
	}
	return b, errors.Join(errs...)
}

// burst returns the burst for a rate, in bits: a tenth of a second, but at least four
// packets of the largest size with segmentation offload. A larger burst would let most
// pods never reach their limit.
func burst(rate uint64) uint64 {
	const packets = 4 * 64 << 10 * 8
	return min(max(rate/10, packets), math.MaxInt32)
}

// Facts are the properties of a pod and its node that plugins may need.
type Facts struct {
	Attachment pod.Attachment
	Ranges     []netip.Prefix // the node's pod CIDRs
	Bandwidth  pod.Bandwidth
}

// Capabilities returns the capability arguments for one interface, by the name of the
// capability.
func (f Facts) Capabilities(i Interface) map[string]any {
	a := f.Attachment
	caps := map[string]any{
		"io.kubernetes.cri.pod-annotations": maps.Clone(a.Annotations),
		"aliases":                           []string{a.Pod.Name},
	}
	set := func(name string, value any, present bool) {
		if present {
			caps[name] = value
		}
	}
	var ranges [][]map[string]string
	for _, p := range f.Ranges {
		ranges = append(ranges, []map[string]string{{"subnet": p.String()}})
	}
	set("ipRanges", ranges, len(ranges) > 0)
	set("cgroupPath", a.Cgroup, a.Cgroup != "")
	set("dns", a.DNS, a.DNS != nil)
	set("ips", i.IPs, len(i.IPs) > 0)
	set("mac", i.MAC, i.MAC != "")
	set("infinibandGUID", i.InfinibandGUID, i.InfinibandGUID != "")
	set("deviceID", i.DeviceID, i.DeviceID != "")
	if i.IfName == a.IfName { // only for the pod's first interface
		set("bandwidth", f.Bandwidth, f.Bandwidth != (pod.Bandwidth{}))
		set("portMappings", slices.Clone(a.Ports), len(a.Ports) > 0)
	}
	return caps
}

// Args returns CNI_ARGS. It fails if the pod's names contain separators.
func Args(a pod.Attachment) ([][2]string, error) {
	args := [][2]string{
		{"IgnoreUnknown", "1"},
		{"K8S_POD_NAMESPACE", a.Pod.Namespace},
		{"K8S_POD_NAME", a.Pod.Name},
		{"K8S_POD_INFRA_CONTAINER_ID", a.Sandbox},
		{"K8S_POD_UID", a.Pod.UID},
	}
	for _, kv := range args {
		if strings.ContainsAny(kv[1], ";=\x00\n") {
			return nil, fmt.Errorf("%s %q can't be passed to a CNI plugin: it contains ; = a zero byte or a line break", kv[0], kv[1])
		}
	}
	return args, nil
}
