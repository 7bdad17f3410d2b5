// Package podlogs keeps the logs of pods where log collectors look for them: each pod has a
// directory NAMESPACE_NAME_UID, and each container a link NAME_NAMESPACE_CONTAINER-ID.log to its
// log.
//
// The directories may be shared with a kubelet and with another huskd. Therefore a pod's log
// directory is recorded below Root before it is made, and only what is recorded is removed.
package podlogs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Dirs are the directories of logs.
type Dirs struct {
	// Root has the directory UID of each pod, in which the link logs names its log directory.
	Root string
	// Pods has the log directories of pods, Links the links to the logs of containers.
	Pods, Links string
}

const (
	// logsMode is the kubelet's. What an administrator gives the directory's group, such as a log
	// collector's, can read the logs.
	logsMode = 0o750

	recordName = "logs"
	suffix     = ".log"
	maxName    = 255 // NAME_MAX
)

func (d Dirs) record(uid string) (string, error) {
	if uid == "" || uid == "." || uid == ".." || strings.ContainsAny(uid, "/\x00") {
		return "", fmt.Errorf("pod uid %q is not a valid directory name", uid)
	}
	return filepath.Join(d.Root, uid, recordName), nil
}

// Create records dir as the log directory of a pod and returns it. A pod that has a recorded log
// directory keeps it, also after the configuration has changed.
func (d Dirs) Create(uid, dir string) (string, error) {
	record, err := d.record(uid)
	if err != nil {
		return "", err
	}
	if known, err := os.Readlink(record); err == nil {
		return known, nil
	}
	for path, mode := range map[string]fs.FileMode{d.Root: 0o700, filepath.Dir(record): 0o700, d.Pods: logsMode} {
		if err := os.MkdirAll(path, mode); err != nil {
			return "", fmt.Errorf("logs of pod: %w", err)
		}
	}
	if err := os.Symlink(dir, record); err != nil {
		return "", fmt.Errorf("logs of pod: %w", err)
	}
	return dir, nil
}

// Remove removes the log directory of a pod, the links into it, and its record.
func (d Dirs) Remove(uid string) error {
	record, err := d.record(uid)
	if err != nil {
		return err
	}
	dir, err := os.Readlink(record)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = d.removeLinks(func(target string) bool { return filepath.Dir(filepath.Dir(target)) == dir })
	}
	if err == nil {
		err = os.RemoveAll(dir)
	}
	if err == nil {
		err = os.Remove(record)
	}
	if err != nil {
		return fmt.Errorf("logs of pod: %w", err)
	}
	_ = os.Remove(filepath.Dir(record)) // fails if the pod has volumes
	return nil
}

// Link links to the log of a container. The link may exist.
func (d Dirs) Link(log, id string) error {
	err := os.MkdirAll(d.Links, logsMode)
	if err == nil {
		err = os.Symlink(log, d.link(log, id))
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("link to the log: %w", err)
	}
	return nil
}

// Unlink removes the link to the log of a container, if there is one.
func (d Dirs) Unlink(log, id string) error {
	if err := os.Remove(d.link(log, id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("link to the log: %w", err)
	}
	return nil
}

// Adopt records the log directories NAMESPACE_NAME_UID in dir as those of the pods with the uids,
// and removes those of other pods. It is for a directory of earlier versions, which recorded
// nothing and shared it with nobody.
func (d Dirs) Adopt(dir string, uids []string) (err error) {
	entries, readErr := os.ReadDir(dir)
	if readErr != nil && !errors.Is(readErr, fs.ErrNotExist) {
		err = fmt.Errorf("logs of pods: %w", readErr)
	}
	for _, e := range entries {
		path, parts := filepath.Join(dir, e.Name()), strings.Split(e.Name(), "_")
		if !e.IsDir() || len(parts) != 3 {
			continue
		}
		if slices.Contains(uids, parts[2]) {
			_, createErr := d.Create(parts[2], path)
			err = errors.Join(err, createErr)
		} else {
			err = errors.Join(err, os.RemoveAll(path))
		}
	}
	return err
}

// Sweep removes the links into log directories that are gone.
func (d Dirs) Sweep() error {
	return d.removeLinks(func(target string) bool {
		dir := filepath.Dir(filepath.Dir(target))
		_, err := os.Lstat(dir)
		return filepath.Dir(dir) == d.Pods && errors.Is(err, fs.ErrNotExist)
	})
}

// removeLinks removes the links whose targets match.
func (d Dirs) removeLinks(match func(target string) bool) error {
	entries, err := os.ReadDir(d.Links)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		path := filepath.Join(d.Links, e.Name())
		if target, err := os.Readlink(path); err != nil || !strings.HasSuffix(e.Name(), suffix) || !match(target) {
			continue
		}
		if rmErr := os.Remove(path); rmErr != nil && !errors.Is(rmErr, fs.ErrNotExist) {
			err = errors.Join(err, rmErr)
		}
	}
	return err
}

// link returns the path of the link to a log, which is DIR/NAMESPACE_NAME_UID/CONTAINER/N.log. Like
// the kubelet, it cuts off a name that is too long.
func (d Dirs) link(log, id string) string {
	dir := filepath.Dir(log)
	namespace, rest, _ := strings.Cut(filepath.Base(filepath.Dir(dir)), "_")
	name, _, _ := strings.Cut(rest, "_")
	base := fmt.Sprintf("%s_%s_%s-%s", name, namespace, filepath.Base(dir), id)
	return filepath.Join(d.Links, base[:min(len(base), maxName-len(suffix))]+suffix)
}
