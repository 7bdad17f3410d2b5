package spec

import (
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// podmans are the capabilities of podman's containers (containers-common, containers.conf(5)).
var podmans = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_BIND_SERVICE",
	"CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

func TestDefaultCapabilities(t *testing.T) {
	t.Parallel()
	var full []string
	for _, name := range DefaultCapabilities() {
		c, err := Capability(name)
		if err != nil {
			t.Error(err)
		}
		full = append(full, c)
	}
	if !equalSets(full, podmans) {
		t.Errorf("%v, want %v", full, podmans)
	}
}

func TestCapabilities(t *testing.T) {
	t.Parallel()
	list := strings.Fields
	without := func(all []string, names ...string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(c string) bool { return slices.Contains(names, c) })
	}
	for _, c := range []struct {
		name               string
		add, drop, ambient []string
		privileged         bool
		daemon             []string
		want, wantAmbient  []string
	}{
		{name: "default", want: podmans},
		{name: "add", add: list("SYS_TIME cap_net_admin"), want: slices.Concat(podmans, list("CAP_SYS_TIME CAP_NET_ADMIN"))},
		{name: "drop", drop: list("chown CAP_KILL SYS_TIME"), want: without(podmans, "CAP_CHOWN", "CAP_KILL")},
		{name: "drop all", drop: list("ALL"), want: nil},
		{name: "drop all, add one", drop: list("all"), add: list("NET_RAW"), want: list("CAP_NET_RAW")},
		{name: "add all", add: list("ALL"), want: knownCapabilities},
		{name: "add all, drop one", add: list("all"), drop: list("SYS_ADMIN"), want: without(knownCapabilities, "CAP_SYS_ADMIN")},
		{name: "both all", add: list("ALL"), drop: list("ALL"), want: nil},
		{name: "add and drop the same", add: list("SYS_TIME"), drop: list("SYS_TIME"), want: podmans},
		{name: "ambient", drop: list("ALL"), ambient: list("NET_BIND_SERVICE"), want: list("CAP_NET_BIND_SERVICE"), wantAmbient: list("CAP_NET_BIND_SERVICE")},
		{name: "privileged", privileged: true, drop: list("ALL"), want: knownCapabilities},
		{name: "add all with an unprivileged daemon", add: list("ALL"), daemon: list("CAP_CHOWN CAP_BPF"), want: list("CAP_CHOWN CAP_BPF")},
		{name: "privileged with an unprivileged daemon", privileged: true, add: list("SYS_TIME"), daemon: list("CAP_BPF"), want: list("CAP_BPF")},
		{name: "default with an unprivileged daemon", daemon: list("CAP_KILL CAP_BPF"), want: list("CAP_KILL")},
	} {
		got := must(t, with(func(r *Request) {
			s := security(r)
			s.Capabilities = &runtimeapi.Capability{AddCapabilities: c.add, DropCapabilities: c.drop, AddAmbientCapabilities: c.ambient}
			r.Sandbox.Linux.SecurityContext.Privileged, s.Privileged, r.Capabilities.Daemon = c.privileged, c.privileged, c.daemon
		})).Spec.Process.Capabilities
		if !equalSets(got.Bounding, c.want) || !equalSets(got.Effective, c.want) || !equalSets(got.Permitted, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got.Bounding, c.want)
		}
		if !equalSets(got.Ambient, c.wantAmbient) || !equalSets(got.Inheritable, c.wantAmbient) {
			t.Errorf("%s: ambient %v, inheritable %v, want %v", c.name, got.Ambient, got.Inheritable, c.wantAmbient)
		}
	}
}

func equalSets(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func TestBadCapabilities(t *testing.T) {
	t.Parallel()
	for field, caps := range map[string]*runtimeapi.Capability{
		`add_capabilities: no capability is called "NET"`:       {AddCapabilities: []string{"NET"}},
		`drop_capabilities: no capability is called ""`:         {DropCapabilities: []string{""}},
		`add_ambient_capabilities: no capability is called "X"`: {AddAmbientCapabilities: []string{"X"}},
		`CAP_SYS_TIME can't be given`:                           {AddCapabilities: []string{"SYS_TIME"}},
	} {
		_, err := Container(with(func(r *Request) {
			security(r).Capabilities, r.Capabilities.Daemon = caps, podmans
		}))
		fails(t, err, field)
	}
	_, err := Container(with(func(r *Request) { security(r).Privileged = true }))
	fails(t, err, "linux.security_context.privileged", "sandbox")
}
