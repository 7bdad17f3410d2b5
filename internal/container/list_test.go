package container

import (
	"fmt"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/container/containerstate"
)

// perSandbox is the number of containers of each sandbox here.
const perSandbox = 2

// filled returns an owner of the containers of as many sandboxes, "s0" and so on. No runtime knows
// them.
func filled(sandboxes int) *Service {
	s := New(Config{})
	began := time.Now()
	for i := range sandboxes * perSandbox {
		sandbox := fmt.Sprintf("s%d", i%sandboxes)
		config := &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: fmt.Sprintf("c%d", i/sandboxes)}}
		s.entries.Join(key(sandbox, config), func(id string) *base {
			e := s.newEntry(id, config, &record{Sandbox: sandbox})
			e.Rec.State, e.Rec.Created = containerstate.Running, began.Add(time.Duration(i))
			return e.base
		})
	}
	return s
}

// TestListOfSandbox checks that a list has the containers of its sandbox, newest first, and that
// its array has no room for those of others: callers keep it.
func TestListOfSandbox(t *testing.T) {
	t.Parallel()
	s := filled(50)
	if n := len(s.List("")); n != 50*perSandbox {
		t.Errorf("%d containers in all, want %d", n, 50*perSandbox)
	}
	for i := range 50 {
		sandbox := fmt.Sprintf("s%d", i)
		list := s.List(sandbox)
		if len(list) != perSandbox || list[0].Name() != "c1" || list[1].Name() != "c0" || list[0].Sandbox != sandbox || list[1].Sandbox != sandbox {
			t.Fatalf("%s: %+v", sandbox, list)
		}
		if cap(list) != perSandbox {
			t.Fatalf("%s: the array of its list has room for %d containers, want %d", sandbox, cap(list), perSandbox)
		}
	}
	if list := s.List("other"); len(list) != 0 {
		t.Errorf("an unknown sandbox has %+v", list)
	}
}

// BenchmarkListOfSandbox lists the containers of one sandbox, beside those of others.
func BenchmarkListOfSandbox(b *testing.B) {
	for _, n := range []int{100, 400, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := filled(n)
			b.ReportAllocs()
			for b.Loop() {
				s.List("s7")
			}
		})
	}
}

// TestSelect checks that Select has what was asked for, newest first, and that its array has no
// room for the others. Views has all.
func TestSelect(t *testing.T) {
	t.Parallel()
	s := filled(50)
	list := s.Select(func(st *Status) bool { return st.Sandbox == "s7" })
	if len(list) != perSandbox || cap(list) != perSandbox || list[0].Name() != "c1" || list[1].Name() != "c0" {
		t.Errorf("room for %d: %+v", cap(list), list)
	}
	all := map[string]bool{}
	for st := range s.Views() {
		all[st.ID] = true
	}
	if len(all) != 50*perSandbox {
		t.Errorf("%d containers in all, want %d", len(all), 50*perSandbox)
	}
}

// BenchmarkJoin adds a container, beside those of many sandboxes.
func BenchmarkJoin(b *testing.B) {
	for _, n := range []int{100, 400, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var s *Service
			const batch = 20 // so few that there are about as many containers at the end
			for i := 0; b.Loop(); i++ {
				if i%batch == 0 {
					b.StopTimer()
					s = filled(n)
					b.StartTimer()
				}
				config := &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: fmt.Sprint("new", i)}}
				s.entries.Join(key("s7", config), func(id string) *base {
					e := s.newEntry(id, config, &record{Sandbox: "s7"})
					e.Rec.State = containerstate.Reserved
					return e.base
				})
			}
		})
	}
}
