package eviction

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const mi = 1 << 20

func parse(t *testing.T, s Settings) []Threshold {
	t.Helper()
	out, err := Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// only returns settings without the default thresholds.
func only(s Settings) Settings {
	off := map[string]string{}
	for signal := range DefaultHard() {
		off[signal] = "0%"
	}
	for signal, value := range s.Hard {
		off[signal] = value
	}
	s.Hard = off
	return s
}

func TestParse(t *testing.T) {
	t.Parallel()
	show := func(s Settings) string {
		var out []string
		for _, one := range parse(t, s) {
			out = append(out, fmt.Sprintf("%s<%d/%s", one.Signal, one.Limit.of(1000), one.Grace))
		}
		return strings.Join(out, " ")
	}
	for _, c := range []struct {
		settings Settings
		want     string
	}{
		{Settings{}, "allocatableMemory.available<104857600/0s imagefs.available<150/0s imagefs.inodesFree<50/0s memory.available<104857600/0s nodefs.available<100/0s nodefs.inodesFree<50/0s"},
		{only(Settings{Hard: map[string]string{"memory.available": "20%", "nodefs.available": "100%"}}), "allocatableMemory.available<200/0s memory.available<200/0s"},
		{only(Settings{Soft: map[string]string{"pid.available": "7"}, SoftGrace: map[string]string{"pid.available": "90s"}}), "pid.available<7/1m30s"},
	} {
		if got := show(c.settings); got != c.want {
			t.Errorf("%+v:\n%s, want\n%s", c.settings, got, c.want)
		}
	}
	for want, s := range map[string]Settings{
		"is not one of the signals":                                {Hard: map[string]string{"containerfs.available": "1%"}},
		"neither a quantity":                                       {Hard: map[string]string{"nodefs.available": "101%"}},
		"eviction-soft: pid.available needs a duration":            {Soft: map[string]string{"pid.available": "1"}},
		"\"pid.available\" has no threshold in eviction-soft":      {SoftGrace: map[string]string{"pid.available": "1s"}},
		"eviction-minimum-reclaim: memory.available: \"x\" is nei": {MinReclaim: map[string]string{"memory.available": "x"}},
	} {
		if _, err := Parse(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

func TestReserved(t *testing.T) {
	t.Parallel()
	capacity := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourceEphemeralStorage: resource.MustParse("1000")}
	got := Reserved(parse(t, Settings{Soft: map[string]string{"memory.available": "50%"}, SoftGrace: map[string]string{"memory.available": "1m"}}), capacity)
	if len(got) != 2 || got.Memory().String() != "100Mi" || got.StorageEphemeral().Value() != 100 {
		t.Errorf("reserved %v", got)
	}
}

// TestObserve plays observations and compares the conditions and what must be reclaimed.
func TestObserve(t *testing.T) {
	t.Parallel()
	memory := map[string]string{"memory.available": "100"}
	type moment struct {
		at   int // seconds
		seen Observations
		want string
	}
	free := func(signal Signal, n int64) Observations { return Observations{signal: {Available: n, Capacity: 1000}} }
	for name, c := range map[string]struct {
		settings Settings
		moments  []moment
	}{
		"hard": {only(Settings{Hard: memory}), []moment{
			{0, free(MemoryAvailable, 100), ""},
			{10, free(MemoryAvailable, 99), "MemoryPressure: memory.available"},
			{20, free(MemoryAvailable, 100), "MemoryPressure"}, // for five minutes
			{309, free(MemoryAvailable, 500), "MemoryPressure"},
			{310, free(MemoryAvailable, 500), ""},
		}},
		"a percentage": {only(Settings{Hard: map[string]string{"nodefs.available": "10%"}}), []moment{
			{0, free(NodeFSAvailable, 99), "DiskPressure: nodefs.available"},
		}},
		"soft": {only(Settings{Soft: memory, SoftGrace: map[string]string{"memory.available": "30s"}}), []moment{
			{0, free(MemoryAvailable, 50), "MemoryPressure"},
			{29, free(MemoryAvailable, 50), "MemoryPressure"},
			{30, free(MemoryAvailable, 50), "MemoryPressure: memory.available"},
			{40, free(MemoryAvailable, 200), "MemoryPressure"},
			{50, free(MemoryAvailable, 50), "MemoryPressure"}, // the grace period begins again
		}},
		"minimum reclaim": {only(Settings{Hard: memory, MinReclaim: map[string]string{"memory.available": "50"}}), []moment{
			{0, free(MemoryAvailable, 149), ""},
			{10, free(MemoryAvailable, 99), "MemoryPressure: memory.available"},
			{20, free(MemoryAvailable, 149), "MemoryPressure: memory.available"},
			{30, free(MemoryAvailable, 150), "MemoryPressure"},
		}},
		"memory first": {only(Settings{Hard: map[string]string{"imagefs.available": "1%", "memory.available": "1%", "pid.available": "1%"}}), []moment{
			{0, Observations{ImageFSAvailable: {0, 1000}, PIDAvailable: {0, 1000}, MemoryAvailable: {0, 1000}}, "DiskPressure MemoryPressure PIDPressure: memory.available imagefs.available pid.available"},
		}},
		"all pods together": {Settings{}, []moment{
			{0, free(AllocatableMemoryAvailable, 1), "MemoryPressure: allocatableMemory.available"},
		}},
		"nothing known": {Settings{}, []moment{{0, nil, ""}}},
	} {
		thresholds := parse(t, c.settings)
		var s State
		for _, m := range c.moments {
			var v Verdict
			s, v = s.Observe(thresholds, m.seen, time.Unix(int64(m.at), 0))
			var got, reclaim []string
			for _, condition := range v.Conditions {
				got = append(got, string(condition))
			}
			for _, one := range v.Reclaim {
				reclaim = append(reclaim, string(one.Signal))
			}
			if text := strings.TrimSuffix(strings.Join(got, " ")+": "+strings.Join(reclaim, " "), ": "); text != m.want {
				t.Errorf("%s at %d s: %q, want %q", name, m.at, text, m.want)
			}
		}
	}
	thresholds := parse(t, only(Settings{Hard: memory, MinReclaim: map[string]string{"memory.available": "50"}}))
	if !Resolved(thresholds, free(MemoryAvailable, 150)) || Resolved(thresholds, free(MemoryAvailable, 149)) || !Resolved(thresholds, nil) {
		t.Error("Resolved doesn't count the minimum to reclaim")
	}
}

func pod(name string, priority int32, requests string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Priority: &priority, Containers: []corev1.Container{{Name: "c"}, {Name: "d"}}}}
	if requests != "" {
		q := resource.MustParse(requests)
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: q, corev1.ResourceEphemeralStorage: q}
	}
	return p
}

func TestRank(t *testing.T) {
	t.Parallel()
	use := func(p *corev1.Pod, n int64) Candidate {
		return Candidate{Pod: p, Usage: Usage{Memory: n * mi, Disk: n * mi, Inodes: n, Processes: n}}
	}
	unknown := Candidate{Pod: pod("unknown", 0, "1Gi"), Unknown: true}
	all := []Candidate{
		use(pod("within", 0, "100Mi"), 50),
		use(pod("nearly", 0, "100Mi"), 99),
		use(pod("over", 0, "100Mi"), 150),
		use(pod("besteffort", 0, ""), 60),
		use(pod("important", 10, ""), 500),
		unknown,
	}
	for signal, want := range map[Signal]string{
		MemoryAvailable:   "unknown besteffort over important nearly within",
		NodeFSAvailable:   "unknown besteffort over important nearly within",
		ImageFSInodesFree: "unknown over nearly besteffort within important",
		PIDAvailable:      "unknown over nearly besteffort within important",
	} {
		list := slices.Clone(all)
		Rank(Threshold{Signal: signal}, list)
		var got []string
		for _, c := range list {
			got = append(got, c.Pod.Name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", signal, got, want)
		}
	}
}

func TestMessage(t *testing.T) {
	t.Parallel()
	c := Candidate{Pod: pod("p", 0, "100Mi"), Containers: map[string]Usage{"c": {Memory: 200 * mi, Disk: 10 * mi}, "d": {Memory: 3 * mi, Disk: mi}}}
	o := Observations{MemoryAvailable: {50 * mi, 1000 * mi}, NodeFSAvailable: {mi, 100 * mi}, PIDAvailable: {3, 100}, NodeFSInodesFree: {4, 100}}
	for _, one := range []struct {
		signal Signal
		limit  Amount
		want   string
	}{
		{MemoryAvailable, Amount{units: 100 * mi}, "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. Container c was using 200Mi, request is 100Mi, has larger consumption of memory. Container d was using 3Mi, request is 0, has larger consumption of memory. "},
		{NodeFSAvailable, Amount{fraction: 0.1}, "The node was low on resource: ephemeral-storage. Threshold quantity: 10Mi, available: 1Mi. Container d was using 1Mi, request is 0, has larger consumption of ephemeral-storage. "},
		{PIDAvailable, Amount{units: 10}, "The node was low on resource: pids. Threshold quantity: 10, available: 3. "},
		{NodeFSInodesFree, Amount{units: 10}, "The node was low on resource: inodes. Threshold quantity: 10, available: 4. "},
	} {
		if got := Message(Threshold{Signal: one.signal, Limit: one.limit}, o, c); got != one.want {
			t.Errorf("%q, want\n%q", got, one.want)
		}
	}
}

func TestRefuse(t *testing.T) {
	t.Parallel()
	never := func(*corev1.Pod, corev1.Taint) bool { return false }
	tolerant := func(_ *corev1.Pod, t corev1.Taint) bool { return t.Key == corev1.TaintNodeMemoryPressure }
	memory, disk := corev1.NodeMemoryPressure, corev1.NodeDiskPressure
	for name, c := range map[string]struct {
		conditions []corev1.NodeConditionType
		pod        *corev1.Pod
		tolerates  func(*corev1.Pod, corev1.Taint) bool
		want       string
	}{
		"no pressure":           {nil, pod("p", 0, ""), never, ""},
		"best effort":           {[]corev1.NodeConditionType{memory}, pod("p", 0, ""), never, "The node had condition: [MemoryPressure]. "},
		"tolerating":            {[]corev1.NodeConditionType{memory}, pod("p", 0, ""), tolerant, ""},
		"burstable":             {[]corev1.NodeConditionType{memory}, pod("p", 0, "1Mi"), never, ""},
		"burstable, disk":       {[]corev1.NodeConditionType{disk}, pod("p", 0, "1Mi"), tolerant, "The node had condition: [DiskPressure]. "},
		"burstable, both":       {[]corev1.NodeConditionType{disk, memory}, pod("p", 0, "1Mi"), never, "The node had condition: [DiskPressure MemoryPressure]. "},
		"critical under both":   {[]corev1.NodeConditionType{disk, memory}, pod("p", 2000000000, ""), never, ""},
		"nearly critical, disk": {[]corev1.NodeConditionType{disk}, pod("p", 1999999999, ""), never, "The node had condition: [DiskPressure]. "},
	} {
		if got := Refuse(c.conditions, c.pod, c.tolerates); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
