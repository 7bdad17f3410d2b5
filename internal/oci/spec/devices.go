package spec

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Major numbers of the character devices that every container may use: see the kernel's
// admin-guide/devices.txt. The runtime creates their nodes.
const (
	majorMem  = 1   // null 3, zero 5, full 7, random 8, urandom 9
	majorTTY  = 5   // tty 0, console 1, ptmx 2
	majorUnix = 136 // the terminals of /dev/pts
)

func (b *builder) devices() error {
	linux := b.spec.Linux
	if b.privileged() {
		linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
	} else {
		linux.Resources.Devices = defaultDevices()
	}
	taken := map[string]bool{}
	for i, d := range b.Devices {
		field := fmt.Sprintf("devices[%d]", i)
		switch {
		case d.Access == "" || strings.Trim(d.Access, "rwm") != "":
			return b.bad(field+".permissions", "%q is not made of r, w and m", d.Access)
		case !strings.HasPrefix(d.Path, "/") || slices.Contains(strings.Split(d.Path, "/"), ".."):
			return b.bad(field+".container_path", "%q is not an absolute path without ..", d.Path)
		}
		device := d.LinuxDevice
		device.Path = path.Clean(d.Path)
		if taken[device.Path] {
			return b.bad(field+".container_path", "%s is that of another device too: remove one", device.Path)
		}
		taken[device.Path] = true
		linux.Devices = append(linux.Devices, device)
		if !b.privileged() {
			linux.Resources.Devices = append(linux.Resources.Devices, allow(device.Type, &device.Major, &device.Minor, d.Access))
		}
	}
	if b.privileged() {
		for _, d := range b.HostDevices {
			if !taken[d.Path] {
				linux.Devices = append(linux.Devices, d.LinuxDevice)
			}
		}
	}
	return nil
}

// defaultDevices returns docker's rules. Any node may be created, because opening it is restricted.
func defaultDevices() []specs.LinuxDeviceCgroup {
	rules := []specs.LinuxDeviceCgroup{
		{Allow: false, Access: "rwm"},
		allow("c", nil, nil, "m"),
		allow("b", nil, nil, "m"),
	}
	for _, d := range []struct{ major, minor int64 }{
		{majorMem, 3}, {majorMem, 5}, {majorMem, 7}, {majorMem, 8}, {majorMem, 9},
		{majorTTY, 0}, {majorTTY, 1}, {majorTTY, 2},
	} {
		rules = append(rules, allow("c", &d.major, &d.minor, "rwm"))
	}
	major := int64(majorUnix)
	return append(rules, allow("c", &major, nil, "rwm"))
}

func allow(kind string, major, minor *int64, access string) specs.LinuxDeviceCgroup {
	return specs.LinuxDeviceCgroup{Allow: true, Type: kind, Major: major, Minor: minor, Access: access}
}
