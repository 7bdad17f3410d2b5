package pod

import (
	"strings"
	"testing"
)

func TestIDs(t *testing.T) {
	t.Parallel()
	id, other := NewID(), NewID()
	if !ValidID(id) || !ValidID(other) || id == other || len(id) != IDLength {
		t.Fatalf("made %q and %q", id, other)
	}
	if Short(id) != id[:12] || Short("abc") != "abc" || Short("") != "" {
		t.Errorf("short: %q %q %q", Short(id), Short("abc"), Short(""))
	}
	for _, bad := range []string{
		"", "abc", id[1:], id + "0", strings.ToUpper(strings.Repeat("a", IDLength)),
		"../" + id[3:], id[:60] + "/../", id[:IDLength-1] + "g", id[:IDLength-1] + "\n", id[:IDLength-2] + "é",
	} {
		if ValidID(bad) {
			t.Errorf("%q counts as a valid ID", bad)
		}
	}
}

func TestInstanceDependsOnRoot(t *testing.T) {
	t.Parallel()
	if a, b := InstanceOf("/var/lib/husk"), InstanceOf("/var/lib/husk2"); a == b {
		t.Errorf("two roots have the same instance %s", a)
	}
	if a, b := InstanceOf("/var/lib/husk"), InstanceOf("/var/lib//husk/x/.."); a != b {
		t.Errorf("the same root has two instances, %s and %s", a, b)
	}
	if got := InstanceOf("/var/lib/husk").String(); !strings.HasPrefix(got, "instance ") {
		t.Errorf("String returns %q", got)
	}
}

// longestLink is IFNAMSIZ minus the terminating NUL.
const longestLink = 15

// TestDerivedNames checks the names by which a sweep finds kernel objects: they must fit, begin
// with the prefix of the sweep and differ between instances.
func TestDerivedNames(t *testing.T) {
	t.Parallel()
	i, j := InstanceOf("/a"), InstanceOf("/b")
	id := NewID()
	for what, names := range map[string][3]string{
		"netns": {i.Netns(id), i.NetnsPrefix(), j.Netns(id)},
		"link":  {i.HostLink(id), i.HostLinkPrefix(), j.HostLink(id)},
	} {
		if !strings.HasPrefix(names[0], names[1]) || strings.HasPrefix(names[2], names[1]) || len(names[0]) == len(names[1]) {
			t.Errorf("%s: %q with prefix %q, in the other instance %q", what, names[0], names[1], names[2])
		}
	}
	if len(i.HostLink(id)) > longestLink || len(i.Bridge()) > longestLink {
		t.Errorf("links %q and %q: at most %d bytes", i.HostLink(id), i.Bridge(), longestLink)
	}
	if strings.HasPrefix(i.Bridge(), i.HostLinkPrefix()) {
		t.Errorf("the sweep for links finds the bridge %q", i.Bridge())
	}
	if i.Table() == j.Table() || i.Cgroup() == j.Cgroup() || !strings.HasPrefix(i.Cgroup(), "/") {
		t.Errorf("tables %q %q, cgroups %q %q", i.Table(), j.Table(), i.Cgroup(), j.Cgroup())
	}
}

// TestClash checks that two IDs clash exactly if they have a derived name in common.
func TestClash(t *testing.T) {
	t.Parallel()
	i, id := InstanceOf("/a"), NewID()
	for n := range IDLength {
		c := byte('0')
		if id[n] == c {
			c = '1'
		}
		other := id[:n] + string(c) + id[n+1:]
		shares := i.HostLink(id) == i.HostLink(other) || i.Netns(id) == i.Netns(other)
		if Clash(id, other) != shares {
			t.Errorf("%s and %s: clash %t, but shared name %t", id, other, Clash(id, other), shares)
		}
	}
	if !Clash(id, id) {
		t.Error("an ID doesn't clash with itself")
	}
}

func TestRef(t *testing.T) {
	t.Parallel()
	if got := (Ref{Namespace: "default", Name: "web", UID: "u"}).String(); got != "default/web" {
		t.Error(got)
	}
}
