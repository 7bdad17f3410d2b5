package cni

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/pod"
)

// retained is a directory of pinned network namespaces, one for each sandbox that is gone
// but has debts: some plugins clean up completely only if they find the interface.
type retained string

// path returns the path at which the namespace of a sandbox is pinned.
func (s retained) path(sandbox string) string { return filepath.Join(string(s), sandbox) }

// find returns the path of an attachment's namespace. It is empty if that no longer
// exists, as after a reboot.
func (s retained) find(a pod.Attachment) string {
	for _, path := range []string{a.Netns, s.path(a.Sandbox)} {
		if netns.Pinned(path) {
			return path
		}
	}
	return ""
}

// keep pins the namespace of an attachment, if that exists.
func (s retained) keep(a pod.Attachment) error {
	if from := s.find(a); from != "" {
		return netns.Keep(from, s.path(a.Sandbox))
	}
	return nil
}

// release unpins the namespace of a sandbox.
func (s retained) release(sandbox string) error {
	err := netns.Remove(s.path(sandbox))
	_ = os.Remove(string(s)) // succeeds only for the last one
	return err
}

// sweep releases the namespaces of sandboxes that are not wanted.
func (s retained) sweep(wanted func(sandbox string) bool) error {
	paths, err := netns.List(string(s), "")
	for _, path := range paths {
		if sandbox := filepath.Base(path); !wanted(sandbox) {
			err = errors.Join(err, s.release(sandbox))
		}
	}
	return err
}
