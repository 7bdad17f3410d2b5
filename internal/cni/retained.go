package cni

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/pod"
)

// retained is a directory that has the namespaces of sandboxes that are gone but
// for a debt: some plugins remove all of an attachment only if they find its
// interface.
type retained string

// path is where the namespace of a sandbox is pinned.
func (s retained) path(sandbox string) string { return filepath.Join(string(s), sandbox) }

// find returns where the namespace of an attachment is pinned. It is empty if
// there is none any more, as after a reboot: DEL has to do without.
func (s retained) find(a pod.Attachment) string {
	for _, path := range []string{a.Netns, s.path(a.Sandbox)} {
		if netns.Pinned(path) {
			return path
		}
	}
	return ""
}

// keep keeps the namespace of an attachment, if there is one.
func (s retained) keep(a pod.Attachment) error {
	if from := s.find(a); from != "" {
		return netns.Keep(from, s.path(a.Sandbox))
	}
	return nil
}

// release lets go of the namespace of a sandbox.
func (s retained) release(sandbox string) error {
	err := netns.Remove(s.path(sandbox))
	_ = os.Remove(string(s)) // if it was the last
	return err
}

// sweep releases what isn't wanted.
func (s retained) sweep(wanted func(sandbox string) bool) error {
	paths, err := netns.List(string(s), "")
	for _, path := range paths {
		if sandbox := filepath.Base(path); !wanted(sandbox) {
			err = errors.Join(err, s.release(sandbox))
		}
	}
	return err
}
