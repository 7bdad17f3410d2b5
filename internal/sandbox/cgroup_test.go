package sandbox

import (
	"testing"

	"github.com/huskd/husk/internal/pod"
)

// The name of a pod's cgroup has the pod's UID, as with a kubelet, by which tools tell whose a
// process is. A sandbox of before keeps the cgroup in which it runs.
func TestCgroupHasUID(t *testing.T) {
	s := New(discard(t))
	config := valid()
	config.Labels, config.Linux.CgroupParent = map[string]string{pod.QOSClassLabel: "burstable"}, ""
	for _, c := range []struct {
		uid  string
		rec  record
		want string
	}{
		{"0b8c1a02-0000-4000-8000-000000000001", record{CgroupOfUID: true}, "pod0b8c1a02-0000-4000-8000-000000000001-" + pod.Short(fuzzID)},
		{"3d1c4a9e0f3b4c5d6e7f8a9b0c1d2e3f", record{CgroupOfUID: true}, "pod3d1c4a9e0f3b4c5d6e7f8a9b0c1d2e3f-" + pod.Short(fuzzID)}, // of a static pod
		{"0b8c1a02-0000-4000-8000-000000000001", record{}, "pod-" + pod.Short(fuzzID)},
		{"../../x", record{CgroupOfUID: true}, "pod-" + pod.Short(fuzzID)},
		{"", record{CgroupOfUID: true}, "pod-" + pod.Short(fuzzID)},
	} {
		config.Metadata.Uid = c.uid
		if got, want := s.Cgroup(s.newEntry(fuzzID, config, &c.rec).View()), "/husk-f0f0/burstable/"+c.want; got != want {
			t.Errorf("UID %q: got %s, want %s", c.uid, got, want)
		}
		if !cgroupNames.MatchString(c.want) {
			t.Errorf("%s doesn't look like a cgroup of huskd's", c.want)
		}
	}
	for _, name := range []string{"pod", "pods", "podx", "pod-0123456789abc", "pod-xyz", "other-0123"} {
		if cgroupNames.MatchString(name) {
			t.Errorf("%s looks like a cgroup of huskd's", name)
		}
	}
}
