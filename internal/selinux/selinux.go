// Package selinux allocates the SELinux labels that keep pods apart: each pod gets a level of its
// own, unless it names one. On a host without SELinux there are no labels and nothing is done.
package selinux

import (
	"fmt"

	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/oci/spec"
)

// Policy allocates labels by the node's SELinux policy.
type Policy struct{}

// Allocate returns labels with the parts that o sets. The other parts are those of the node's
// policy for containers, with a level that no other pod gets until Release.
func (Policy) Allocate(o *runtimeapi.SELinuxOption) (spec.Labels, error) {
	if !selinux.GetEnabled() {
		return spec.Labels{}, nil
	}
	process, mount, err := label.InitLabels(options(o))
	if err != nil {
		return spec.Labels{}, fmt.Errorf("SELinux labels: %w", err)
	}
	return spec.Labels{Process: process, Mount: mount}, nil
}

// options returns the parts that o sets in the form that package label takes.
func options(o *runtimeapi.SELinuxOption) []string {
	var options []string
	for _, part := range []struct{ name, value string }{
		{"user", o.GetUser()}, {"role", o.GetRole()}, {"type", o.GetType()}, {"level", o.GetLevel()},
	} {
		if part.value != "" {
			options = append(options, part.name+":"+part.value)
		}
	}
	return options
}

// Reserve keeps Allocate from giving away the level of labels that were allocated before a restart.
func (Policy) Reserve(l spec.Labels) {
	if l.Process != "" {
		_ = selinux.ReserveLabelV2(l.Process) // fails if another container of the pod has reserved it
	}
}

// Release makes the level of labels available again.
func (Policy) Release(l spec.Labels) {
	if l.Process != "" {
		selinux.ReleaseLabel(l.Process)
	}
}

// Relabel gives path and everything below it the label mount, unless that is empty.
func (Policy) Relabel(path, mount string) error {
	if mount == "" {
		return nil
	}
	if err := label.Relabel(path, mount, false); err != nil {
		return fmt.Errorf("SELinux label of %s: %w", path, err)
	}
	return nil
}
