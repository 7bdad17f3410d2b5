// Package bundle reads and changes the parts of a container's bundle that concern the OCI runtime
// drivers.
package bundle

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pod"
)

// SpecFile is the name of the runtime spec in a bundle.
const SpecFile = "config.json"

// CheckID checks that an ID can be the name of a file in a directory, and that all runtimes accept
// it.
func CheckID(id string) error {
	const maxLength = 128
	valid := len(id) > 0 && len(id) <= maxLength && id[0] != '.' && id[0] != '-'
	for _, c := range []byte(id) {
		alnum := c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		valid = valid && (alnum || c == '-' || c == '_' || c == '.')
	}
	if !valid {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("container ID %q: want up to %d letters, digits, '_' and, except at the beginning, '-' and '.'", id, maxLength))
	}
	return nil
}

// Bundle is a bundle with the decoded parts of its runtime spec.
type Bundle struct {
	Dir string `json:"-"`
	// Raw is the whole spec.
	Raw json.RawMessage `json:"-"`

	Process *struct {
		Terminal bool `json:"terminal"`
		User     struct {
			UID uint32 `json:"uid"`
		} `json:"user"`
	} `json:"process"`
	Root struct {
		Path string `json:"path"`
	} `json:"root"`
	Annotations map[string]string `json:"annotations"`
	Hooks       struct {
		Poststart []json.RawMessage `json:"poststart"`
		Poststop  []json.RawMessage `json:"poststop"`
	} `json:"hooks"`
	Linux struct {
		CgroupsPath string                 `json:"cgroupsPath"`
		UIDMappings []specs.LinuxIDMapping `json:"uidMappings"`
		IntelRdt    json.RawMessage        `json:"intelRdt"`
	} `json:"linux"`
}

// Read reads the bundle of a request and checks that they agree.
func Read(req oci.Create) (*Bundle, error) {
	if err := CheckID(req.ID); err != nil {
		return nil, err
	}
	invalid := func(format string, args ...any) (*Bundle, error) {
		return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("create container %s: ", pod.Short(req.ID)) + fmt.Sprintf(format, args...))
	}
	if !filepath.IsAbs(req.Bundle) || req.Log != "" && !filepath.IsAbs(req.Log) {
		return invalid("bundle %q and log %q must be absolute paths", req.Bundle, req.Log)
	}
	// conmon would take the part before a colon as the name of a log driver.
	if strings.Contains(req.Log, ":") {
		return invalid("log %q has a colon, which conmon does not support: use another directory", req.Log)
	}
	b := &Bundle{Dir: filepath.Clean(req.Bundle)}
	file := filepath.Join(b.Dir, SpecFile)
	raw, err := os.ReadFile(file)
	if err != nil {
		return invalid("read the spec: %v", err)
	}
	if err := json.Unmarshal(raw, b); err != nil {
		return invalid("spec %s: %v", file, err)
	}
	b.Raw = raw
	if b.Process == nil {
		return invalid("spec %s has no process", file)
	}
	if b.Process.Terminal != req.Terminal {
		return invalid("spec %s says terminal %v, the request %v", file, b.Process.Terminal, req.Terminal)
	}
	// Everything in this cgroup is killed when the container is deleted, so it must be the
	// container's alone.
	if c := b.Cgroup(); !path.IsAbs(c) || path.Clean(c) != c || !strings.Contains(path.Base(c), req.ID) {
		return invalid("spec %s: linux.cgroupsPath %q must be absolute, and its last element must contain the container's ID", file, c)
	}
	return b, nil
}

// Cgroup returns the container's cgroup. Its last element contains the ID.
func (b *Bundle) Cgroup() string { return b.Linux.CgroupsPath }

// SetCgroup changes the name of the cgroup in the spec.
func (b *Bundle) SetCgroup(name string) error {
	var whole map[string]json.RawMessage
	var linux map[string]json.RawMessage
	if err := json.Unmarshal(b.Raw, &whole); err != nil {
		return err
	}
	if err := json.Unmarshal(whole["linux"], &linux); err != nil {
		return err
	}
	var err error
	if linux["cgroupsPath"], err = json.Marshal(name); err != nil {
		return err
	}
	if whole["linux"], err = json.Marshal(linux); err != nil {
		return err
	}
	if b.Raw, err = json.Marshal(whole); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.Dir, SpecFile), b.Raw, 0o600)
}

// Owner returns the host's user that the process in a user namespace runs as; nil without a user
// namespace.
func (b *Bundle) Owner() *int {
	var owner *int
	for _, m := range b.Linux.UIDMappings {
		if uid := b.Process.User.UID; uid >= m.ContainerID && uid-m.ContainerID < m.Size {
			id := int(m.HostID + uid - m.ContainerID)
			owner = &id
		}
	}
	return owner
}
