package overlay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/network/rtnetlink"
)

// alias is what the links are for, for people.
const alias = "husk: pods of other nodes"

// kinds are the kernel's names of the kinds of links.
var kinds = map[backend.Way]string{backend.VXLAN: "vxlan", backend.IPIP: "ipip", backend.WireGuard: "wireguard"}

// kindTun is the kind of a link that is a program's.
const kindTun = "tun"

// link is the kernel's data about a link.
type link struct {
	rtnetlink.Link
	local    netip.Addr // of vxlan and ipip
	vni      uint32
	port     uint16
	learning bool
	address  []netip.Prefix // of IPv4
}

func parseLink(data []byte) (l link, ok bool) {
	var err error
	if l.Link, err = rtnetlink.ParseLink(data); err != nil {
		return l, false
	}
	if l.Kind != "vxlan" && l.Kind != "ipip" {
		return l, true
	}
	for typ, info := range nlsock.Attributes(data[unix.SizeofIfInfomsg:]) {
		if typ != unix.IFLA_LINKINFO {
			continue
		}
		for typ, value := range nlsock.Attributes(info) {
			if typ == nl.IFLA_INFO_DATA {
				l.parseData(value)
			}
		}
	}
	return l, true
}

func (l *link) parseData(data []byte) {
	for typ, value := range nlsock.Attributes(data) {
		switch {
		case l.Kind == "ipip":
			if typ == nl.IFLA_IPTUN_LOCAL {
				l.local, _ = netip.AddrFromSlice(value)
			}
		case typ == nl.IFLA_VXLAN_ID:
			l.vni = nlsock.Uint32(value)
		case typ == nl.IFLA_VXLAN_LOCAL || typ == nl.IFLA_VXLAN_LOCAL6:
			l.local, _ = netip.AddrFromSlice(value)
		case typ == nl.IFLA_VXLAN_PORT && len(value) == 2:
			l.port = binary.BigEndian.Uint16(value)
		case typ == nl.IFLA_VXLAN_LEARNING && len(value) == 1:
			l.learning = value[0] != 0
		}
	}
}

// ours reports whether the link is this instance's. The kernel sets the group when it makes a link,
// so there is no moment in which ours has another. That of a program gets it afterwards.
func (k *kernel) ours(l link) bool {
	if l.Kind == kindTun && slices.Contains(wireGuardLinks(k.instance), l.Name) {
		return true
	}
	if !strings.HasPrefix(l.Name, backend.LinkPrefix(k.instance)) || l.Group != k.tag {
		return false
	}
	for _, kind := range kinds {
		if l.Kind == kind {
			return true
		}
	}
	return false
}

// isLink reports whether a link is that of a plan, however it differs.
func (k *kernel) isLink(want backend.Link, l link) bool {
	return k.ours(l) && (l.Kind == kinds[want.Way] || l.Kind == kindTun && want.Way == backend.WireGuard)
}

func inPlan(links []backend.Link, name string) bool {
	return slices.ContainsFunc(links, func(l backend.Link) bool { return l.Name == name })
}

// listLinks returns all links of the node by name, with the addresses of our own.
func (o *Overlay) listLinks() (map[string]link, error) {
	all, err := nlsock.List(o.kernel.conn, rtnetlink.GetLink("", 0), parseLink)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	links := make(map[string]link, len(all))
	o.links = make(map[string]int, len(all))
	for _, l := range all {
		links[l.Name], o.links[l.Name] = l, l.Index
	}
	for name, l := range links {
		if !o.kernel.ours(l) {
			continue
		}
		if l.address, err = o.kernel.addressesOf(l.Index); err != nil {
			return nil, err
		}
		links[name] = l
	}
	return links, nil
}

// addressesOf returns the IPv4 addresses of a link.
func (k *kernel) addressesOf(index int) ([]netip.Prefix, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETADDR, 0)
	msg := nl.NewIfAddrmsg(unix.AF_INET)
	msg.Index = uint32(index)
	req.AddData(msg)
	addresses, err := nlsock.List(k.conn, req, func(data []byte) (netip.Prefix, bool) {
		a, ok := rtnetlink.ParseAddress(data)
		return a.Prefix, ok && a.Link == index
	})
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	return addresses, nil
}

// compareLink returns how a link differs from its plan.
func (o *Overlay) compareLink(want backend.Link, have link) (out []Difference) {
	object := "link " + want.Name
	differs := func(format string, args ...any) {
		out = append(out, Difference{object, fmt.Sprintf(format, args...)})
	}
	switch {
	case have.Name == "":
		differs(missing)
		return out
	case !o.kernel.isLink(want, have):
		differs("somebody else's, of kind %q", have.Kind)
		return out
	}
	if want.Way == backend.VXLAN {
		if have.vni != want.VNI || have.port != want.Port {
			differs("VNI %d and port %d, not %d and %d", have.vni, have.port, want.VNI, want.Port)
		}
		if have.MAC != want.MAC {
			differs("MAC %v, not %v", have.MAC, want.MAC)
		}
		if have.learning {
			differs("it learns addresses from packets")
		}
	}
	if want.Way != backend.WireGuard && have.local != want.Local {
		differs("local address %v, not %v", have.local, want.Local)
	}
	if want.Way == backend.WireGuard {
		out = append(out, o.devices.compare(want)...)
	}
	if have.MTU != want.MTU {
		differs("MTU %d, not %d", have.MTU, want.MTU)
	}
	if !have.Up {
		differs("down")
	}
	if !set(have) {
		differs("forwarding, rp_filter, addrgenmode or alias")
	}
	if add, remove := changedAddresses(want, have); len(add)+len(remove) > 0 {
		differs("addresses %v, not %v", have.address, want.Address)
	}
	return out
}

// set reports whether a link has the settings that all of ours have.
func set(l link) bool {
	return l.Forwarding && l.RPFilter == 2 && l.Alias == alias && (l.NoAutoAddress || !rtnetlink.KernelHasIPv6())
}

// changedAddresses returns which addresses of a link to add and to remove.
func changedAddresses(want backend.Link, have link) (add, remove []netip.Prefix) {
	if want.Address.IsValid() {
		add = []netip.Prefix{netip.PrefixFrom(want.Address, want.Address.BitLen())}
	}
	for _, a := range have.address {
		if slices.Contains(add, a) {
			add = nil
		} else {
			remove = append(remove, a)
		}
	}
	return add, remove
}

// ensureLinks makes the links of a plan, and changes those that differ. It returns the names of
// those that can't be used, and notes about optional ones, and adds new links to o.links.
func (o *Overlay) ensureLinks(wanted []backend.Link, links map[string]link) (unusable map[string]bool, notes []string, err error) {
	unusable = map[string]bool{}
	var errs []error
	for _, want := range wanted {
		err := o.ensureLink(want, links)
		if err == nil {
			continue
		}
		unusable[want.Name] = true
		if err = fmt.Errorf("link %s: %w", want.Name, err); want.Optional {
			notes = append(notes, err.Error())
		} else {
			errs = append(errs, err)
		}
	}
	return unusable, notes, errors.Join(errs...)
}

func (o *Overlay) ensureLink(want backend.Link, links map[string]link) error {
	have, exists := links[want.Name]
	if exists && !o.kernel.isLink(want, have) {
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("a link of kind %q has this name and isn't Husk's: delete or rename it", have.Kind))
	}
	if exists && want.Way == backend.VXLAN && (have.vni != want.VNI || have.port != want.Port || have.MAC != want.MAC || have.learning) {
		if err := o.deleteLink(want.Name); err != nil {
			return err
		}
		exists = false
	}
	if !exists {
		if err := o.makeLink(want); err != nil {
			return explain(err, want, links)
		}
		made, err := rtnetlink.LinkByName(o.kernel.conn, want.Name)
		if err != nil {
			return err
		}
		have, o.links[want.Name] = link{Link: made, local: want.Local}, made.Index
	}
	if exists && want.Way == backend.VXLAN && !o.unsummed[want.Name] {
		// It was switched off before huskd was restarted.
		if on, err := o.kernel.ethtool(want.Name, unix.ETHTOOL_GTXCSUM, 0); err == nil && on == 0 {
			o.unsummed[want.Name] = true
		}
	}
	if have.local != want.Local && want.Way != backend.WireGuard {
		if err := o.kernel.do(o.kernel.newLink(want, 0)); err != nil {
			return fmt.Errorf("change: %w", err)
		}
	}
	if !set(have) || have.MTU != want.MTU {
		err := o.kernel.do(rtnetlink.SetLink(rtnetlink.LinkChange{Index: have.Index, MTU: want.MTU, Alias: alias, NoAutoAddress: true, Forwarding: true, LooseRPFilter: true}))
		if err != nil {
			return fmt.Errorf("settings: %w", err)
		}
	}
	if want.Way == backend.WireGuard {
		if err := o.devices.ensure(want); err != nil {
			return err
		}
	}
	return o.raise(want, have)
}

// makeLink makes a link, by a program if the kernel can't.
func (o *Overlay) makeLink(want backend.Link) error {
	if want.Way != backend.WireGuard || o.startWireGuard == nil || o.inKernel(want.Way) == nil {
		return o.kernel.do(o.kernel.newLink(want, unix.NLM_F_CREATE|unix.NLM_F_EXCL))
	}
	if err := o.kernel.inNode(func() error { return o.startWireGuard(want.Name, want.MTU) }); err != nil {
		return err
	}
	return o.kernel.do(rtnetlink.SetLink(rtnetlink.LinkChange{Name: want.Name, Group: o.kernel.tag}))
}

// raise sets a link up, with its address and features.
func (o *Overlay) raise(want backend.Link, have link) error {
	if o.unsummed[want.Name] {
		if err := o.kernel.setTxChecksum(want.Name, false); err != nil {
			return err
		}
	}
	if !have.Up {
		if err := o.kernel.do(rtnetlink.SetLink(rtnetlink.LinkChange{Index: have.Index, Up: true})); err != nil {
			if errors.Is(err, unix.EADDRINUSE) {
				err = fmt.Errorf("UDP port %d is taken: %w", want.Port, err)
			}
			return fmt.Errorf("set up: %w", err)
		}
	}
	add, remove := changedAddresses(want, have)
	for _, a := range add {
		err := o.kernel.do(rtnetlink.Address(unix.RTM_NEWADDR, have.Index, plan.Address{Prefix: a, LastResort: true}))
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("address %v: %w", a, err)
		}
	}
	for _, a := range remove {
		err := o.kernel.do(rtnetlink.Address(unix.RTM_DELADDR, have.Index, plan.Address{Prefix: a}))
		if err != nil && !isGone(err) {
			return fmt.Errorf("remove address %v: %w", a, err)
		}
	}
	return nil
}

// removeLinks removes our links that aren't in the plan.
func (o *Overlay) removeLinks(wanted []backend.Link, links map[string]link) error {
	var errs []error
	for name, l := range links {
		if o.kernel.ours(l) && !inPlan(wanted, name) {
			errs = append(errs, o.deleteLink(name))
		}
	}
	return errors.Join(errs...)
}

func (o *Overlay) deleteLink(name string) error {
	if err := o.kernel.do(rtnetlink.DeleteLinks(name, 0)); err != nil && !isGone(err) {
		return fmt.Errorf("delete link %s: %w", name, err)
	}
	delete(o.links, name)
	return nil
}

func (k *kernel) do(req *nl.NetlinkRequest) error { return k.conn.Do(req)[0].Err }

// explain says what an error of making a link means.
func explain(err error, want backend.Link, links map[string]link) error {
	if want.Way == backend.VXLAN && errors.Is(err, unix.EEXIST) {
		for name, l := range links {
			if l.vni == want.VNI && l.port == want.Port && l.local.Is4() == want.Local.Is4() {
				return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("link %s has VNI %d and port %d already: delete it", name, l.vni, l.port))
			}
		}
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("the kernel has no %s: %w", kinds[want.Way], err)
	}
	return err
}

// newLink returns the request that makes a link or, without flags, changes its local address. The
// MAC is set from the beginning, so that systemd-udevd doesn't assign another.
func (k *kernel) newLink(l backend.Link, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK|flags)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(l.Name)))
	create := flags != 0
	if create || l.Way == backend.IPIP { // vxlan refuses it in a change, ipip resets it without
		req.AddData(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(l.MTU))))
	}
	if create {
		req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(k.tag)))
		if l.Way == backend.VXLAN {
			req.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, l.MAC[:]))
		}
	}
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, []byte(kinds[l.Way]))
	switch l.Way {
	case backend.VXLAN:
		data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
		local := nl.IFLA_VXLAN_LOCAL
		if l.Local.Is6() {
			local = nl.IFLA_VXLAN_LOCAL6
		}
		data.AddRtAttr(nl.IFLA_VXLAN_ID, nl.Uint32Attr(l.VNI))
		data.AddRtAttr(local, l.Local.AsSlice())
		if create {
			data.AddRtAttr(nl.IFLA_VXLAN_PORT, binary.BigEndian.AppendUint16(nil, l.Port))
			data.AddRtAttr(nl.IFLA_VXLAN_LEARNING, []byte{0})
		}
	case backend.IPIP: // the kernel resets what is missing here
		data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
		data.AddRtAttr(nl.IFLA_IPTUN_LOCAL, l.Local.AsSlice())
		data.AddRtAttr(nl.IFLA_IPTUN_PMTUDISC, []byte{0})
	}
	req.AddData(info)
	return req
}
