// Package dirmodes keeps other users of the node out of huskd's directories. Files of pods have the
// modes that pods give them, among them executables with a setuid bit, so the directories above
// them are what protects the node.
package dirmodes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	// Passable is the mode of the directories that root users of pods' user namespaces pass
	// through. Each has a group of its own, so these are open to everybody. Below them are
	// directories of one pod, whose names can't be guessed: see userns.MakeDir.
	Passable fs.FileMode = 0o711
	closed   fs.FileMode = 0o700
)

// belowRoot and belowState are the modes of the directories below --root and --state. What is in a
// closed one needs no mode of its own: nobody gets there.
var (
	belowRoot = map[string]fs.FileMode{
		"containers":  Passable,
		"checkpoints": closed, "claims": closed, "images": closed, "journal": closed, "logs": closed, "network": closed, "pki": closed, "pods": closed,
	}
	belowState = map[string]fs.FileMode{
		"sandboxes": Passable,
		"cni":       closed, "containers": closed, "monitor": closed, "network": closed, "pods": closed, "shim": closed,
	}
)

// Close takes from other users the rights on huskd's directories that they shouldn't have. An
// earlier version, or who made a directory for huskd, may have given them. It also makes the
// passable directories.
func Close(root, state string) error {
	return errors.Join(closeBelow(root, belowRoot), closeBelow(state, belowState))
}

func closeBelow(dir string, below map[string]fs.FileMode) error {
	err := restrict(dir, Passable)
	for name, mode := range below {
		path := filepath.Join(dir, name)
		err = errors.Join(err, restrict(path, mode))
		if mode != Passable {
			continue
		}
		if makeErr := os.Mkdir(path, mode); makeErr == nil {
			err = errors.Join(err, os.Chmod(path, mode)) // whatever the umask is
		}
		entries, readErr := os.ReadDir(path)
		err = errors.Join(err, readErr)
		for _, e := range entries {
			err = errors.Join(err, restrict(filepath.Join(path, e.Name()), closed))
		}
	}
	return err
}

// CloseLogs does the same for directories of logs.
func CloseLogs(dirs ...string) (err error) {
	for _, dir := range dirs {
		err = errors.Join(err, restrict(dir, closed))
	}
	return err
}

// restrict takes from others than the owner and the group of a directory the rights that mode
// doesn't give them. The group is the administrator's choice, or that of a user namespace.
func restrict(path string, mode fs.FileMode) error {
	const others = 0o007
	info, err := os.Lstat(path)
	if err == nil && info.IsDir() && info.Mode()&others&^mode != 0 {
		err = os.Chmod(path, info.Mode()&^(others&^mode))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("close a directory to other users of the node: %w", err)
	}
	return nil
}
