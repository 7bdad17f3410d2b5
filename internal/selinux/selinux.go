// Package selinux gives pods the labels of SELinux by which they are kept apart:
// each has a level of its own, unless it names one. Where SELinux isn't enabled
// there are no labels, and nothing is done.
package selinux

import (
	"fmt"

	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/oci/spec"
)

// Policy is the node's.
type Policy struct{}

// Allocate returns labels with the parts that o has; the others are those of the
// node's policy for containers, and a level that no other pod has until Release.
func (Policy) Allocate(o *runtimeapi.SELinuxOption) (spec.Labels, error) {
	if !selinux.GetEnabled() {
		return spec.Labels{}, nil
	}
	var options []string
	for _, part := range []struct{ name, value string }{
		{"user", o.GetUser()}, {"role", o.GetRole()}, {"type", o.GetType()}, {"level", o.GetLevel()},
	} {
		if part.value != "" {
			options = append(options, part.name+":"+part.value)
		}
	}
	process, mount, err := label.InitLabels(options)
	if err != nil {
		return spec.Labels{}, fmt.Errorf("SELinux labels: %w", err)
	}
	return spec.Labels{Process: process, Mount: mount}, nil
}

// Reserve keeps the level of labels of before a restart from being given to
// another pod.
func (Policy) Reserve(l spec.Labels) {
	if l.Process != "" {
		// It fails if another container of the pod has reserved it.
		_ = selinux.ReserveLabelV2(l.Process)
	}
}

// Release gives the level back.
func (Policy) Release(l spec.Labels) {
	if l.Process != "" {
		selinux.ReleaseLabel(l.Process)
	}
}

// Relabel gives all that is at a path the label of mounts.
func (Policy) Relabel(path, mount string) error {
	if mount == "" {
		return nil
	}
	if err := label.Relabel(path, mount, false); err != nil {
		return fmt.Errorf("SELinux label of %s: %w", path, err)
	}
	return nil
}
