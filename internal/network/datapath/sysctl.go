package datapath

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/plan"
)

// Sysctl is a change of a sysctl. Name is its path below /proc/sys.
type Sysctl struct {
	Name   string
	Former string
	Value  string
}

// ReadSysctl returns the value of a sysctl of the calling thread's namespace.
func ReadSysctl(name string) (string, error) {
	data, err := os.ReadFile(filepath.Join("/proc/sys", name))
	if err != nil {
		return "", fmt.Errorf("sysctl %s: %w", dotted(name), err)
	}
	return strings.TrimSpace(string(data)), nil
}

// dotted returns a sysctl's name as sysctl(8) writes it.
func dotted(name string) string {
	return strings.NewReplacer("/", ".", ".", "/").Replace(name)
}

// MissingSysctls returns the changes after which the named sysctls of the node are 1, in the order
// in which to make them.
func (d *Datapath) MissingSysctls(names []string) (changes []Sysctl, err error) {
	err = d.InNode(func() error {
		for _, name := range names {
			former, err := ReadSysctl(name)
			if err != nil {
				return err
			}
			if former == "1" {
				continue
			}
			if name == plan.Forward6 {
				keep, err := acceptAdvertisements()
				if err != nil {
					return err
				}
				changes = append(changes, keep...)
			}
			changes = append(changes, Sysctl{name, former, "1"})
		}
		return nil
	})
	return changes, err
}

// SetSysctls makes the changes on the node. The caller has recorded the former values.
func (d *Datapath) SetSysctls(changes []Sysctl) error {
	return d.InNode(func() error {
		for _, c := range changes {
			if err := setSysctl(c.Name, c.Value); err != nil {
				return err
			}
		}
		return nil
	})
}

// RestoreSysctls sets sysctls of the node back to their former values, unless another instance of
// Husk on the node needs them.
func (d *Datapath) RestoreSysctls(former map[string]string) error {
	if others, err := d.table.otherInstances(); err != nil || others > 0 {
		return err
	}
	// Forwarding goes first: without it, accept_ra 1 means yes again.
	names := slices.SortedFunc(maps.Keys(former), func(a, b string) int {
		return strings.Compare(strings.TrimPrefix(a, plan.Forward6), strings.TrimPrefix(b, plan.Forward6))
	})
	return d.InNode(func() error {
		var errs []error
		for _, name := range names {
			if err := setSysctl(name, former[name]); err != nil {
				errs = append(errs, fmt.Errorf("restore: %w", err))
			}
		}
		return errors.Join(errs...)
	})
}

// setSysctl sets a sysctl in the calling thread's namespace. A missing one belonged to a link that
// is gone, so it is not an error.
func setSysctl(name, value string) error {
	if err := netns.SetSysctl(name, value); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// acceptAdvertisements returns the changes that keep the node listening to its router. With
// forwarding on, accept_ra 1 means no. And when forwarding is switched on, the kernel drops the
// advertised routes of links whose accept_ra isn't 2 (Documentation/networking/ip-sysctl.rst,
// accept_ra).
func acceptAdvertisements() ([]Sysctl, error) {
	paths, err := filepath.Glob("/proc/sys/net/ipv6/conf/*/accept_ra")
	if err != nil {
		return nil, err
	}
	var out []Sysctl
	for _, path := range paths {
		name := strings.TrimPrefix(path, "/proc/sys/")
		link := filepath.Base(filepath.Dir(path))
		if link == "all" || link == "default" || link == "lo" {
			continue
		}
		was, err := ReadSysctl(name)
		if errors.Is(err, os.ErrNotExist) {
			continue // the link is gone
		}
		if err != nil {
			return nil, err
		}
		if was == "1" {
			out = append(out, Sysctl{name, was, "2"})
		}
	}
	return out, nil
}
