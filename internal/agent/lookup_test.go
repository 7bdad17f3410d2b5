package agent

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// BenchmarkGet finds a pod by its UID, beside others.
func BenchmarkGet(b *testing.B) {
	for _, n := range []int{100, 400, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			a := &Agent{workers: workers{byName: map[string]*worker{}, byUID: map[string]*worker{}}}
			for i := range n {
				name := fmt.Sprintf("pod-%d", i)
				s := &podState{a: a, manifest: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}}}
				w := &worker{podState: s, published: &publisher{podState: s}}
				w.published.replace(Pod{Manifest: s.manifest})
				a.workers.add(w)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := a.Get("pod-7"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.apply(parse(t, "web", ", uid: abcd-1"))
	h.apply(parse(t, "web", ", namespace: other, uid: abce-2"))
	h.apply(parse(t, "db", ", namespace: other, uid: dddd-3"))
	h.waitFor("dddd-3", "waiting for its image", imageMissing)
	p, _ := h.Get("dddd-3")
	st, _ := p.Sandbox()
	for _, c := range []struct{ name, want string }{
		{"web", "default/web"}, // the default namespace is preferred
		{"other/web", "other/web"},
		{"db", "other/db"},
		{"dddd-3", "other/db"},
		{"pod/db", "other/db"},
		{"pods/other/web", "other/web"},
		{"pod/none", `! no pod "none"`},
		{"other/db/c", "other/db c"},
		{"db/c", "other/db c"},
		{"pod/other/db/c", "other/db c"},
		{"db/none", `! no pod "db/none"`},
		{"abcd", "default/web"},
		{st.ID, "other/db"},
		{st.ID[:12], "other/db"},
		{"abc", `! "abc" is ambiguous, it may be`},
		{"dd", `! no pod "dd"`}, // too short for an ID
		{"none", `! no pod "none"`},
		{"", `! no pod ""`},
		{"default/db", "! no pod"},
	} {
		p, container, err := h.Find(c.name)
		if want, fails := strings.CutPrefix(c.want, "! "); fails {
			if err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%q finds %v, want %s", c.name, err, want)
			}
			continue
		}
		if err != nil || strings.TrimSpace(p.Name()+" "+container) != c.want {
			t.Errorf("%q finds %q, %v", c.name, container, err)
		}
	}
}

// BenchmarkHeap reports how much of the heap a pod takes that waits for its image, and has a
// sandbox and no container. It must not depend on how many there are.
func BenchmarkHeap(b *testing.B) {
	for _, n := range []int{100, 400, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				h := newHarness(b)
				before := heap()
				for i := range n {
					h.apply(parse(b, fmt.Sprintf("p%d", i), fmt.Sprintf(", uid: pod-%d", i)))
				}
				for i := range n {
					h.waitFor(fmt.Sprintf("pod-%d", i), "waiting for its image", imageMissing)
				}
				b.ReportMetric(float64(heap()-before)/float64(n), "B/pod")
			}
		})
	}
}

// heap returns the size of what is in use of the heap, in bytes.
func heap() int64 {
	runtime.GC()
	runtime.GC() // of what finalizers have freed
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
