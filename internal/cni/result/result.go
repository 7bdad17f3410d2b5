// Package result parses and validates the results of CNI plugins' ADD. It is pure.
package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/huskd/husk/internal/pod"
)

// form has the fields of a result that are used, of all versions.
type form struct {
	Version    *string  `json:"cniVersion"`
	Interfaces []*iface `json:"interfaces"`
	IPs        []*ip    `json:"ips"`
	Routes     []*struct {
		Dst string `json:"dst"`
	} `json:"routes"`
	// In versions 0.1.0 and 0.2.0.
	IP4 *oldIP `json:"ip4"`
	IP6 *oldIP `json:"ip6"`
}

type iface struct {
	Name    string `json:"name"`
	MAC     string `json:"mac"`
	MTU     int    `json:"mtu"`
	Sandbox string `json:"sandbox"`
}

type ip struct {
	Family    string `json:"version"` // until 0.4.0
	Address   string `json:"address"`
	Gateway   string `json:"gateway"`
	Interface *int   `json:"interface"`
}

type oldIP struct {
	Address string `json:"ip"`
	Gateway string `json:"gateway"`
}

// Parse returns a plugin's output as a result of the CNI version as. It converts a
// result of another version. One without a version counts as one of that version.
func Parse(answer []byte, as string) (json.RawMessage, error) {
	if len(bytes.TrimSpace(answer)) == 0 {
		return nil, errors.New("it returned nothing")
	}
	var fields map[string]json.RawMessage
	var f form
	err := json.Unmarshal(answer, &fields)
	if err == nil {
		err = json.Unmarshal(answer, &f)
	}
	if err != nil {
		return nil, fmt.Errorf("its output is not a CNI result: %w", err)
	}
	if fields == nil {
		return nil, errors.New("its output is not a CNI result: null")
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	if f.Version == nil || *f.Version == "" {
		fields["cniVersion"], _ = json.Marshal(as)
		return json.Marshal(fields)
	}
	if *f.Version == as {
		return answer, nil
	}
	return convert(answer, *f.Version, as)
}

func convert(answer []byte, from, to string) (json.RawMessage, error) {
	fail := func(err error) (json.RawMessage, error) {
		return nil, fmt.Errorf("it returned a result of cniVersion %q instead of %s: %w", from, to, err)
	}
	if !slices.Contains(version.All.SupportedVersions(), from) {
		return fail(errors.New("unknown version"))
	}
	r, err := create.Create(from, answer)
	if err != nil {
		return fail(err)
	}
	if r, err = r.GetAsVersion(to); err != nil {
		return fail(err)
	}
	return json.Marshal(r)
}

// check refuses null entries and invalid indexes.
func (f form) check() error {
	for i, x := range f.Interfaces {
		if x == nil {
			return fmt.Errorf("interfaces[%d] of its result is null", i)
		}
	}
	for i, x := range f.Routes {
		if x == nil {
			return fmt.Errorf("routes[%d] of its result is null", i)
		}
	}
	for i, x := range f.IPs {
		if x == nil {
			return fmt.Errorf("ips[%d] of its result is null", i)
		}
		if n := x.Interface; n != nil && (*n < 0 || *n >= len(f.Interfaces)) {
			return fmt.Errorf("ips[%d] of its result refers to interface %d of %d", i, *n, len(f.Interfaces))
		}
	}
	return nil
}

// Attached returns what a result from Parse says about the pod's interface ifName. An
// address is required if needIP.
func Attached(raw json.RawMessage, ifName string, needIP bool) (pod.Attached, error) {
	a := pod.Attached{IfName: ifName}
	var f form
	if err := json.Unmarshal(raw, &f); err != nil {
		return a, err
	}
	if err := f.check(); err != nil {
		return a, err
	}
	f.unify()
	own := -1 // the pod's interface
	for i, x := range f.Interfaces {
		switch {
		case x.Sandbox == "":
			a.HostLink = x.Name // a bridge comes before the pod's host interface, which is kept
		case x.Name == ifName:
			own, a.MAC, a.MTU = i, x.MAC, x.MTU
		}
	}
	if len(f.Interfaces) > 0 && own < 0 {
		return a, fmt.Errorf("its result has no interface %s in the pod", ifName)
	}
	for i, x := range f.IPs {
		if x.Interface != nil && *x.Interface != own {
			continue
		}
		if err := addIP(&a, x); err != nil {
			return a, fmt.Errorf("ips[%d] of its result: %w", i, err)
		}
	}
	if needIP && len(a.Addresses) == 0 {
		return a, fmt.Errorf("its result has no address for %s", ifName)
	}
	return a, nil
}

// unify converts the addresses of the oldest versions to those of the later ones.
func (f *form) unify() {
	for family, old := range map[string]*oldIP{"4": f.IP4, "6": f.IP6} {
		if old != nil {
			f.IPs = append(f.IPs, &ip{Family: family, Address: old.Address, Gateway: old.Gateway})
		}
	}
	if f.IP4 != nil && f.IP6 != nil {
		slices.SortFunc(f.IPs, func(a, b *ip) int { return strings.Compare(a.Family, b.Family) })
	}
}

func addIP(a *pod.Attached, x *ip) error {
	p, err := netip.ParsePrefix(x.Address)
	if err != nil {
		return fmt.Errorf("%q is not an address with a prefix length", x.Address)
	}
	addr := p.Addr()
	family := "6"
	if addr.Is4() {
		family = "4"
	}
	switch {
	case addr.IsUnspecified(), addr.IsMulticast(), addr.IsLoopback(), addr.Is4In6():
		return fmt.Errorf("%s is not an address that a pod can have", p)
	case x.Family != "" && x.Family != family:
		return fmt.Errorf("%s is not an IPv%s address", p, x.Family)
	case slices.ContainsFunc(a.Addresses, func(other netip.Prefix) bool { return other.Addr() == addr }):
		return fmt.Errorf("%s is listed twice", addr)
	}
	a.Addresses = append(a.Addresses, p)
	if x.Gateway == "" {
		return nil
	}
	gateway, err := netip.ParseAddr(x.Gateway)
	if err != nil {
		return fmt.Errorf("gateway %q is not an address", x.Gateway)
	}
	if gateway.Is4() != addr.Is4() {
		return fmt.Errorf("gateway %s and address %s are of different families", gateway, p)
	}
	if !slices.ContainsFunc(a.Gateways, func(other netip.Addr) bool { return other.Is4() == gateway.Is4() }) {
		a.Gateways = append(a.Gateways, gateway)
	}
	return nil
}
