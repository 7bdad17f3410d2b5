package sysctl

import (
	"strings"
	"testing"
)

func TestNamespaceOf(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]Namespace{
		"net.core.somaxconn": Network, "net/ipv4/ip_forward": Network, "kernel.shm_rmid_forced": IPC, "kernel/sem": IPC,
		"fs.mqueue.msg_max": IPC, "kernel.msg": IPC, "kernel.pid_max": "", "vm.swappiness": "", "network.x": "", "kernel.semi": "", "": "",
	} {
		if got := NamespaceOf(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestNormalize(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"net.ipv4.conf.eth0/1.forwarding": "net.ipv4.conf.eth0/1.forwarding",
		"net/ipv4/conf/eth0.1/forwarding": "net.ipv4.conf.eth0/1.forwarding",
		"kernel/sem":                      "kernel.sem",
		"x":                               "x",
	} {
		if got := Normalize(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestAllowlist(t *testing.T) {
	t.Parallel()
	list, err := Allow([]string{"kernel/msg*", "kernel.sem", "net.core.*", "net.ipv6.conf.all.disable_ipv6"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name             string
		network, ipc     bool
		says, withoutAny string
	}{
		{"kernel.shm_rmid_forced", false, false, "", ""},
		{"kernel/shm_rmid_forced", false, false, "", ""},
		{"kernel.shm_rmid_forced", true, false, "", ""},
		{"kernel.shm_rmid_forced", false, true, "with hostIPC", "with hostIPC"},
		{"net.ipv4.tcp_rmem", false, true, "", ""},
		{"net.ipv4.tcp_rmem", true, false, "with hostNetwork", "with hostNetwork"},
		{"kernel.msgmax", false, false, "", "on this node"},
		{"kernel.msgmax", false, true, "with hostIPC", "on this node"},
		{"kernel/sem", false, false, "", "on this node"},
		{"net.core.somaxconn", false, false, "", "on this node"},
		{"net.core.somaxconn", true, false, "with hostNetwork", "on this node"},
		{"net.corex", false, false, "on this node", "on this node"},
		{"net.ipv6.conf.all.disable_ipv6", false, false, "", "on this node"},
		{"kernel.shmmax", false, false, "on this node", "on this node"},
		{"kernel.pid_max", false, false, "on this node", "on this node"},
	} {
		check := func(l Allowlist, want string) {
			t.Helper()
			err := l.Check(c.name, c.network, c.ipc)
			if (err == nil) != (want == "") || err != nil && !strings.HasSuffix(err.Error(), want) {
				t.Errorf("%s, hostNetwork %t, hostIPC %t: %v, want %q", c.name, c.network, c.ipc, err, want)
			}
		}
		check(list, c.says)
		check(Allowlist{}, c.withoutAny)
	}
}

func TestAllowRefuses(t *testing.T) {
	t.Parallel()
	for _, p := range []string{"", "*", "foo", "foo*", "kernel.*", "net*", " net.x", "net.x ", "net.-", "net.*.x", "net.*/x", "net.x**", "vm.swappiness", "Net.x", strings.Repeat("net.", 100) + "x"} {
		if _, err := Allow([]string{p}); err == nil {
			t.Errorf("%q is allowed", p)
		}
	}
	for _, p := range []string{"net.*", "net.x", "net.ipv4.tcp_*", "net/ipv4/*", "fs.mqueue.*", "kernel.shm*", "kernel.sem"} {
		if _, err := Allow([]string{p}); err != nil {
			t.Error(err)
		}
	}
}
