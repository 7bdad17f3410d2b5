package systemd

import (
	"strings"
	"testing"

	"github.com/huskd/husk/internal/pod"
)

func TestPath(t *testing.T) {
	for name, want := range map[string]string{
		"kubepods.slice":                        "/kubepods.slice",
		"kubepods-burstable-pod1_2.slice":       "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice",
		"-.slice":                               "/",
		"":                                      "",
		".slice":                                "",
		"kubepods":                              "",
		"a--b.slice":                            "",
		"-a.slice":                              "",
		"a-.slice":                              "",
		"a/b.slice":                             "",
		"a b.slice":                             "",
		"../x.slice":                            "",
		"é.slice":                               "",
		strings.Repeat("a", maxName) + ".slice": "",
		"kubepods-besteffort-pod0123abcd-x.scope": "",
	} {
		got, err := Path(name)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("path of %q is %q, %v; want %q", name, got, err, want)
		}
	}
}

func TestUnit(t *testing.T) {
	parent, err := Path("kubepods-burstable-podX.slice")
	if err != nil {
		t.Fatal(err)
	}
	cgroup := pod.ContainerCgroup(parent, "0123")
	if cgroup != "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podX.slice/cri-husk-0123.scope" {
		t.Errorf("cgroup of the container is %q", cgroup)
	}
	unit, ok := Unit(cgroup)
	if unit != "kubepods-burstable-podX.slice:cri-husk:0123" || !ok {
		t.Errorf("unit of %q is %q, %v", cgroup, unit, ok)
	}
	for _, other := range []string{
		"/husk-1/pod-2/3", "/kubepods.slice/0123", "/x/kubepods.slice/cri-husk-1.scope", "/kubepods.slice/other-1.scope", "", "/",
	} {
		if unit, ok := Unit(other); ok {
			t.Errorf("%q has the unit %q, want none", other, unit)
		}
	}
}
