// Package record has what drivers of OCI runtimes write down of their containers,
// for the next huskd to find them: a directory for each, named by its ID, and in
// it one file that is always whole.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/bundle"
	"github.com/huskd/husk/internal/pod"
)

// File is the name of a container's record in its directory.
const File = "record.json"

// Container is the part of a record that all drivers have.
type Container struct {
	ID   string `json:"id"`
	Boot string `json:"boot"`
	// Bundle is the request's, where conmon has its sockets.
	Bundle string `json:"bundle"`
	Log    string `json:"log,omitempty"`
	// Cgroup is the container's own: the last element has its ID in it.
	Cgroup   string `json:"cgroup"`
	Terminal bool   `json:"terminal,omitempty"`
	Stdin    bool   `json:"stdin,omitempty"`
	// StdinOnce: conmon closes stdin when a client of attach leaves.
	StdinOnce bool `json:"stdinOnce,omitempty"`

	Monitor oci.Process `json:"monitor"` // conmon
	Init    oci.Process `json:"init"`
}

// Created says whether the container's creation went through.
func (c Container) Created() bool { return c.Init.PID != 0 }

// Of returns the ID of the container that the record is of.
func (c Container) ContainerID() string { return c.ID }

// Take makes the container's directory in dir. It is what two creations of one ID
// fight for: the second gets errdefs.ErrAlreadyExists.
func Reserve(dir, id string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	err := os.Mkdir(filepath.Join(dir, id), 0o700)
	if errors.Is(err, fs.ErrExist) {
		return errdefs.ErrAlreadyExists.WithMessage(fmt.Sprintf("container %s exists: delete it first", pod.Short(id)))
	}
	return err
}

// Load reads a container's record into one that is empty. If there is none, the
// error is errdefs.ErrNotFound.
func Load(dir, id string, record interface{ ContainerID() string }) error {
	if err := bundle.CheckID(id); err != nil {
		return err
	}
	file := filepath.Join(dir, id, File)
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return errdefs.ErrNotFound.WithMessage(fmt.Sprintf("container %s: there is none", pod.Short(id)))
	}
	if err == nil {
		err = json.Unmarshal(raw, record)
	}
	if err == nil && record.ContainerID() != id {
		err = fmt.Errorf("it is that of %q", record.ContainerID())
	}
	if err != nil {
		return fmt.Errorf("container %s: its record %s can't be read: %w", pod.Short(id), file, err)
	}
	return nil
}

// Interrupted is the error of a container whose creation didn't go through.
func Interrupted(id string) error {
	return errdefs.ErrNotFound.WithMessage(fmt.Sprintf("container %s: its creation was interrupted; delete it", pod.Short(id)))
}

// Save writes a container's record.
func Save(dir string, record interface{ ContainerID() string }) error {
	raw, err := json.Marshal(record)
	if err != nil {
		return err
	}
	return Replace(filepath.Join(dir, record.ContainerID(), File), raw)
}

// Replace writes a file so that a reader sees the old or the new content.
func Replace(path string, content []byte) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, content, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// List returns the IDs of all containers that have a directory, also of those
// half-made.
func List(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var ids []string
	for _, e := range entries {
		ids = append(ids, e.Name())
	}
	return ids, err
}
