package selinux

import (
	"errors"
	"slices"
	"testing"

	"github.com/opencontainers/selinux/go-selinux"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/oci/spec"
)

// These tests also run on hosts without SELinux, as `make test` does. There they don't cover that
// Allocate takes the rest of a label from the policy and finds a free level, and that Relabel
// changes files. Both are the library's work, which does nothing without a mounted selinuxfs; that
// can't be faked, since the library checks the magic number of the file system.

func TestAllocate(t *testing.T) {
	l, err := Policy{}.Allocate(&runtimeapi.SELinuxOption{Level: "s0:c1,c2"})
	if err != nil {
		t.Fatal(err)
	}
	defer Policy{}.Release(l)
	if enabled := selinux.GetEnabled(); enabled != (l != spec.Labels{}) {
		t.Errorf("labels are %+v while SELinux enabled is %v", l, enabled)
	}
}

func TestOptions(t *testing.T) {
	for _, test := range []struct {
		option *runtimeapi.SELinuxOption
		want   []string
	}{
		{nil, nil},
		{&runtimeapi.SELinuxOption{}, nil},
		{&runtimeapi.SELinuxOption{Level: "s0:c1,c2"}, []string{"level:s0:c1,c2"}},
		{
			&runtimeapi.SELinuxOption{User: "u", Role: "r", Type: "t", Level: "s0"},
			[]string{"user:u", "role:r", "type:t", "level:s0"},
		},
	} {
		if got := options(test.option); !slices.Equal(got, test.want) {
			t.Errorf("options of %v are %q, want %q", test.option, got, test.want)
		}
	}
}

// TestReserve checks the levels in use, which the library keeps with or without SELinux.
func TestReserve(t *testing.T) {
	l := spec.Labels{Process: "system_u:system_r:container_t:s0:c1022,c1023", Mount: "system_u:object_r:container_file_t:s0:c1022,c1023"}
	free := func() bool {
		return !errors.Is(selinux.CheckLabel(l.Process), selinux.ErrMCSAlreadyExists)
	}
	Policy{}.Reserve(l)
	if free() {
		t.Error("the level is free after Reserve")
	}
	Policy{}.Reserve(l) // for another container of the pod
	Policy{}.Release(l)
	if !free() {
		t.Error("the level is taken after Release")
	}
	Policy{}.Reserve(spec.Labels{})
	Policy{}.Release(spec.Labels{})
}

func TestRelabelWithoutLabel(t *testing.T) {
	if err := (Policy{}).Relabel("/no/such/path", ""); err != nil {
		t.Errorf("error without a label to set: %v", err)
	}
}
