package daemon

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/huskd/husk/internal/network/service"
)

// TestServicesChanged checks that names follow the changes of a source of Services.
func TestServicesChanged(t *testing.T) {
	(*names)(nil).ServicesChanged(service.Changes{})
	n := &names{changed: make(chan struct{}, 1), services: map[string]*service.Service{}, slices: map[string]*service.Slice{}}
	for _, c := range []struct {
		changes service.Changes
		want    string
	}{
		{service.Changes{Services: map[string]*service.Service{"a/b": {}, "a/c": {}}, Slices: map[string]*service.Slice{"a/b-1": {}}}, "a/b a/c a/b-1"},
		{service.Changes{Services: map[string]*service.Service{"a/b": nil}}, "a/c a/b-1"},
		{service.Changes{Slices: map[string]*service.Slice{"a/b-1": nil, "a/d-1": {}}}, "a/c a/d-1"},
	} {
		n.ServicesChanged(c.changes)
		got := strings.Join(slices.Concat(slices.Sorted(maps.Keys(n.services)), slices.Sorted(maps.Keys(n.slices))), " ")
		if got != c.want || len(n.changed) != 1 {
			t.Errorf("after %v: %q, want %q", c.changes, got, c.want)
		}
	}
}
