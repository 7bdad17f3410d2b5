// Package record stores the records of containers that let drivers find their containers after a
// restart: a directory for each container, named after its ID, with one file that is replaced
// atomically.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/atomicfile"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/bundle"
	"github.com/huskd/husk/internal/pod"
)

// File is the name of a container's record in its directory.
const File = "record.json"

// Container is the part of a record that all drivers share.
type Container struct {
	ID   string `json:"id"`
	Boot string `json:"boot"`
	// Bundle is the bundle of the request. conmon has its sockets there.
	Bundle string `json:"bundle"`
	Log    string `json:"log,omitempty"`
	// Cgroup is the container's cgroup. Its last element contains the ID.
	Cgroup   string `json:"cgroup"`
	Terminal bool   `json:"terminal,omitempty"`
	Stdin    bool   `json:"stdin,omitempty"`
	// StdinOnce makes conmon close stdin when an attached client disconnects.
	StdinOnce bool `json:"stdinOnce,omitempty"`

	Monitor oci.Process `json:"monitor"` // conmon
	Init    oci.Process `json:"init"`
}

// Created reports whether the container's creation succeeded.
func (c Container) Created() bool { return c.Init.PID != 0 }

// ContainerID returns the ID of the record's container.
func (c Container) ContainerID() string { return c.ID }

// ConmonArgs returns the arguments for conmon that all drivers use.
func (c Container) ConmonArgs(pidFile string) []string {
	log := "none"
	if c.Log != "" {
		log = "k8s-file:" + c.Log
	}
	args := []string{
		"--cid", c.ID, "--cuuid", c.ID,
		"--bundle", c.Bundle,
		"--container-pidfile", pidFile,
		"--log-path", log,
		// Binds the attach socket through /proc/self/fd, so the path can have any length.
		"--full-attach",
		// An fsync at the exit of each container would stall a slow disk.
		"--no-sync-log",
	}
	if c.Stdin {
		args = append(args, "--stdin")
	}
	if !c.StdinOnce {
		args = append(args, "--leave-stdin-open")
	}
	return args
}

// Reserve creates the container's directory in dir. Of two concurrent creations with one ID the
// second gets errdefs.ErrAlreadyExists.
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

// Load reads a container's record into an empty one. The error is errdefs.ErrNotFound if there is
// none, and errdefs.ErrDataLoss if it is damaged: the container can only be deleted then.
func Load(dir, id string, record interface{ ContainerID() string }) error {
	if err := bundle.CheckID(id); err != nil {
		return err
	}
	file := filepath.Join(dir, id, File)
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return errdefs.ErrNotFound.WithMessage(fmt.Sprintf("container %s does not exist", pod.Short(id)))
	}
	if err != nil {
		return fmt.Errorf("container %s: %w", pod.Short(id), err)
	}
	err = json.Unmarshal(raw, record)
	if err == nil && record.ContainerID() != id {
		err = fmt.Errorf("it belongs to %q", record.ContainerID())
	}
	if err != nil {
		return errdefs.ErrDataLoss.WithMessage(fmt.Sprintf("container %s: its record %s is damaged: %v", pod.Short(id), file, err))
	}
	return nil
}

// Interrupted returns the error for a container whose creation didn't succeed.
func Interrupted(id string) error {
	return errdefs.ErrNotFound.WithMessage(fmt.Sprintf("container %s: its creation was interrupted: delete it", pod.Short(id)))
}

// Save writes a container's record.
func Save(dir string, record interface{ ContainerID() string }) error {
	raw, err := json.Marshal(record)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, record.ContainerID(), File), raw, 0o600)
}

// List returns the IDs of all containers that have a directory, including those whose creation was
// interrupted.
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
