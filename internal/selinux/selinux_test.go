package selinux

import (
	"testing"

	"github.com/opencontainers/selinux/go-selinux"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/oci/spec"
)

// TestLabels holds on hosts with SELinux and without.
func TestLabels(t *testing.T) {
	l, err := Policy{}.Allocate(&runtimeapi.SELinuxOption{Level: "s0:c1,c2"})
	if err != nil {
		t.Fatal(err)
	}
	if enabled := selinux.GetEnabled(); enabled != (l != spec.Labels{}) {
		t.Errorf("SELinux is enabled: %v, and the labels are %+v", enabled, l)
	}
	Policy{}.Reserve(l)
	Policy{}.Release(l)
	if err := (Policy{}).Relabel("/no/such/path", ""); err != nil {
		t.Errorf("what has no label was labelled: %v", err)
	}
}
