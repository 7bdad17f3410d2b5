package plugin

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/huskd/husk/internal/network/daemonless"
	"github.com/huskd/husk/internal/network/ipam"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

// DefaultDataDir holds a directory for each network, with its name.
const DefaultDataDir = "/var/lib/husk/cni"

// conf is a network configuration as a single plugin gets it. The keys from Mode to Network are
// Husk's own, see docs/reference/husk-cni.md.
type conf struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`

	Mode       string             `json:"mode"`
	Bridge     string             `json:"bridge"`
	Subnet     string             `json:"subnet"`
	Ranges     [][]addressRange   `json:"ranges"`
	Routes     []plan.Destination `json:"routes"`
	MTU        int                `json:"mtu"`
	Masquerade *bool              `json:"masquerade"`
	Hairpin    *bool              `json:"hairpin"`
	DNS        types.DNS          `json:"dns"`
	DataDir    string             `json:"dataDir"`
	Daemon     string             `json:"daemon"`
	Network    string             `json:"network"`

	Runtime    runtimeConfig   `json:"runtimeConfig"`
	Args       confArgs        `json:"args"`
	IPAM       types.IPAM      `json:"ipam"`
	PrevResult json.RawMessage `json:"prevResult"`
	Valid      json.RawMessage `json:"cni.dev/valid-attachments"`

	parsed
}

// parsed is the parsed content of a conf.
type parsed struct {
	network    daemonless.Config
	attachment pod.Attachment
	valid      []types.GCAttachment
}

// addressRange has the format of the capability ipRanges and of host-local.
type addressRange struct {
	Subnet     string     `json:"subnet"`
	RangeStart netip.Addr `json:"rangeStart"`
	RangeEnd   netip.Addr `json:"rangeEnd"`
	Gateway    netip.Addr `json:"gateway"`
}

// runtimeConfig holds the capabilities' arguments.
type runtimeConfig struct {
	PortMappings []struct {
		HostPort      int    `json:"hostPort"`
		ContainerPort int    `json:"containerPort"`
		Protocol      string `json:"protocol"`
		HostIP        string `json:"hostIP"`
	} `json:"portMappings"`
	Bandwidth pod.Bandwidth    `json:"bandwidth"`
	IPs       []string         `json:"ips"`
	MAC       string           `json:"mac"`
	IPRanges  [][]addressRange `json:"ipRanges"`
	DNS       *struct {
		Servers  []string `json:"servers"`
		Searches []string `json:"searches"`
		Options  []string `json:"options"`
	} `json:"dns"`
}

// confArgs is the specification's older form of the same.
type confArgs struct {
	CNI struct {
		IPs []string `json:"ips"`
		MAC string   `json:"mac"`
	} `json:"cni"`
}

// standard are the keys of the specification that don't concern plugins, or not this one.
var standard = []string{"type", "capabilities", "disableCheck", "disableGC", "loadOnlyInlinedPlugins", "cniVersions"}

// parse parses a configuration and args. DEL and GC ignore what only concerns new attachments: they
// must work whatever the configuration has become.
func parse(stdin []byte, args Args) (*conf, error) {
	c := &conf{}
	if err := json.Unmarshal(stdin, c); err != nil {
		return nil, fault(types.ErrDecodingFailure, "network configuration: %v", err)
	}
	if err := c.identity(args.Command); err != nil {
		return nil, err
	}
	c.network = daemonless.Config{
		Dir: filepath.Join(c.DataDir, c.Name), Mode: plan.Mode(c.Mode), Bridge: c.Bridge,
		Masquerade: c.Masquerade == nil || *c.Masquerade, MTU: c.MTU, Routes: c.Routes,
		NoHairpin: c.Hairpin != nil && !*c.Hairpin,
	}
	if args.Command == Del {
		return c, nil
	}
	if args.Command == GC {
		if err := c.attachments(); err != nil {
			return nil, err
		}
		c.network.Ranges, _ = c.ranges()
		return c, nil
	}
	if err := unknown(stdin); err != nil {
		return nil, err
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	var err error
	if c.Network == "" {
		c.network.Ranges, err = c.ranges()
	} else {
		err = c.checkNode(stdin)
	}
	if err != nil {
		return nil, err
	}
	if args.Command == Add {
		err = c.request(args)
	}
	return c, err
}

// attachments parses GC's list of valid attachments. An empty one may be written null, but a
// missing one is a mistake of the caller.
func (c *conf) attachments() error {
	if c.Valid == nil {
		return fault(types.ErrInvalidNetworkConfig, "GC needs the list cni.dev/valid-attachments: without one, everything would be removed")
	}
	if err := json.Unmarshal(c.Valid, &c.valid); err != nil {
		return fault(types.ErrDecodingFailure, "cni.dev/valid-attachments: %v", err)
	}
	return nil
}

// identity checks the keys that every operation needs.
func (c *conf) identity(command string) error {
	if err := utils.ValidateNetworkName(c.Name); err != nil {
		return fault(types.ErrInvalidNetworkConfig, "name %q: use letters, digits and _.-", c.Name)
	}
	if c.CNIVersion == "" {
		c.CNIVersion = "0.1.0"
	}
	if !slices.Contains(version.All.SupportedVersions(), c.CNIVersion) {
		return types.NewError(types.ErrIncompatibleCNIVersion, fmt.Sprintf("cniVersion %q is not supported", c.CNIVersion),
			"use one of "+strings.Join(version.All.SupportedVersions(), ", "))
	}
	if ok, err := version.GreaterThanOrEqualTo(c.CNIVersion, since[command]); !ok || err != nil {
		return fault(types.ErrIncompatibleCNIVersion, "cniVersion %s has no %s: it was added in %s", c.CNIVersion, command, since[command])
	}
	if c.DataDir == "" {
		c.DataDir = DefaultDataDir
	}
	if !filepath.IsAbs(c.DataDir) {
		return fault(types.ErrInvalidNetworkConfig, "dataDir %q: not an absolute path", c.DataDir)
	}
	if c.Mode == "" {
		c.Mode = string(plan.PTP)
		if c.Bridge != "" {
			c.Mode = string(plan.Bridge)
		}
	}
	return nil
}

// unknown returns an error for unknown keys, which are likely typing errors.
func unknown(stdin []byte) error {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(stdin, &all); err != nil {
		return fault(types.ErrDecodingFailure, "network configuration: %v", err)
	}
	known := slices.Clone(standard)
	t := reflect.TypeFor[conf]()
	for i := range t.NumField() {
		known = append(known, t.Field(i).Tag.Get("json"))
	}
	var bad []string
	for key := range all {
		isKnown := slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, key) })
		if !isKnown && !strings.ContainsAny(key, "./") {
			bad = append(bad, key)
		}
	}
	if len(bad) == 0 {
		return nil
	}
	slices.Sort(bad)
	return fault(types.ErrUnsupportedField, "unknown key %s: see docs/reference/husk-cni.md", strings.Join(bad, ", "))
}

// check returns an error if a value is invalid.
func (c *conf) check() error {
	invalid := func(format string, args ...any) error { return fault(types.ErrInvalidNetworkConfig, format, args...) }
	if c.IPAM.Type != "" {
		return fault(types.ErrUnsupportedField, "ipam: husk-cni allocates addresses itself: use subnet or ranges instead")
	}
	switch {
	case c.Mode != string(plan.PTP) && c.Mode != string(plan.Bridge):
		return invalid("mode %q: use ptp or bridge", c.Mode)
	case c.Mode == string(plan.PTP) && c.Bridge != "":
		return invalid("bridge %q: mode ptp has no bridge", c.Bridge)
	case c.Bridge != "" && utils.ValidateInterfaceName(c.Bridge) != nil:
		return invalid("bridge %q: not the name of a link", c.Bridge)
	case c.MTU != 0 && (c.MTU < 1280 || c.MTU > 65535):
		return invalid("mtu %d: use 1280 to 65535, or 0 for the uplink's", c.MTU)
	case c.Daemon != "" && !filepath.IsAbs(c.Daemon):
		return invalid("daemon %q: not the absolute path of a socket", c.Daemon)
	}
	for _, r := range c.Routes {
		switch {
		case !r.Dst.IsValid() || r.Dst != r.Dst.Masked():
			return invalid("routes: dst %v: not a prefix such as 10.0.0.0/8", r.Dst)
		case r.Via.IsValid() && r.Via.Is4() != r.Dst.Addr().Is4():
			return invalid("routes: %v via %v: not of the same family", r.Dst, r.Via)
		case r.Via.IsValid() && c.Mode == string(plan.PTP):
			return invalid("routes: %v via %v: in mode ptp, the node routes everything: remove gw", r.Dst, r.Via)
		}
	}
	return nil
}

// checkNode returns an error if the configuration of the node's network has settings of its own.
func (c *conf) checkNode(stdin []byte) error {
	if c.Network != Node {
		return fault(types.ErrInvalidNetworkConfig, "network %q: use %q, or leave it out", c.Network, Node)
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(stdin, &all); err != nil {
		return fault(types.ErrDecodingFailure, "network configuration: %v", err)
	}
	for _, key := range []string{"mode", "bridge", "subnet", "ranges", "routes", "mtu", "masquerade", "hairpin", "dataDir"} {
		if _, ok := all[key]; ok {
			return fault(types.ErrInvalidNetworkConfig, "%s: huskd's configuration determines the network of this node: remove this key", key)
		}
	}
	if len(c.Runtime.IPRanges) > 0 {
		return fault(types.ErrUnsupportedField, "ipRanges: the network of this node has its own: remove the capability")
	}
	return nil
}

// ranges returns the runtime's ranges, or else the configured ones.
func (c *conf) ranges() ([]ipam.Ranges, error) {
	field, sets := "ipRanges", c.Runtime.IPRanges
	if len(sets) == 0 {
		field, sets = "ranges", c.Ranges
		if c.Subnet != "" {
			sets = append([][]addressRange{{{Subnet: c.Subnet}}}, sets...)
		}
	}
	if len(sets) == 0 {
		return nil, fault(types.ErrInvalidNetworkConfig, "no subnet: set subnet, or ranges for two families")
	}
	var out []ipam.Ranges
	for _, set := range sets {
		var ranges ipam.Ranges
		for _, r := range set {
			parsed, err := r.parse(field)
			if err != nil {
				return nil, err
			}
			for _, other := range append(slices.Concat(out...), ranges...) {
				if other.First.Compare(parsed.Last) <= 0 && parsed.First.Compare(other.Last) <= 0 {
					return nil, fault(types.ErrInvalidNetworkConfig, "%s: %v and %v overlap", field, other.Subnet, parsed.Subnet)
				}
			}
			ranges = append(ranges, parsed)
		}
		if len(ranges) == 0 {
			return nil, fault(types.ErrInvalidNetworkConfig, "%s: an empty list of ranges", field)
		}
		four := ranges[0].First.Is4()
		for _, r := range ranges {
			if r.First.Is4() != four {
				return nil, fault(types.ErrInvalidNetworkConfig, "%s: %v and %v are of different families: use one list for each", field, ranges[0].Subnet, r.Subnet)
			}
		}
		for _, other := range out {
			if other[0].First.Is4() == four {
				return nil, fault(types.ErrInvalidNetworkConfig, "%s: %v and %v are of the same family: use one list for both", field, other[0].Subnet, ranges[0].Subnet)
			}
		}
		out = append(out, ranges)
	}
	return out, nil
}

func (r addressRange) parse(field string) (ipam.Range, error) {
	subnet, err := netip.ParsePrefix(r.Subnet)
	if err != nil {
		return ipam.Range{}, fault(types.ErrInvalidNetworkConfig, "%s: subnet %q: not a prefix such as 10.244.0.0/16", field, r.Subnet)
	}
	out, err := ipam.NewRange(subnet, r.RangeStart, r.RangeEnd)
	if err != nil {
		return out, fault(types.ErrInvalidNetworkConfig, "%s: %v", field, err)
	}
	if first := plan.First(subnet); r.Gateway.IsValid() && r.Gateway != first {
		return out, fault(types.ErrUnsupportedField, "%s: gateway %v: the gateway of %v is %v", field, r.Gateway, subnet, first)
	}
	return out, nil
}

// dns returns the name servers for the result: the runtime's, or else the configuration's.
func (c *conf) dns() types.DNS {
	if d := c.Runtime.DNS; d != nil && len(d.Servers)+len(d.Searches)+len(d.Options) > 0 {
		return types.DNS{Nameservers: d.Servers, Search: d.Searches, Options: d.Options}
	}
	return c.DNS
}
