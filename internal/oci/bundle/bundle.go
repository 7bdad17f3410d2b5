// Package bundle reads what of a container's bundle concerns the drivers of OCI
// runtimes.
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

// SpecFile is the runtime spec in a bundle.
const SpecFile = "config.json"

// CheckID keeps an ID from leading out of a directory. What it lets through
// the runtimes take too.
func CheckID(id string) error {
	const longest = 128
	valid := len(id) > 0 && len(id) <= longest && id[0] != '.' && id[0] != '-'
	for _, c := range []byte(id) {
		alnum := c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		valid = valid && (alnum || c == '-' || c == '_' || c == '.')
	}
	if !valid {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("container ID %q: want up to %d letters, digits, '_' and, but first, '-' and '.'", id, longest))
	}
	return nil
}

// Bundle is a directory with a runtime spec, of which this is a part.
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

// Read checks what is asked against its bundle, which it returns.
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
	// conmon takes what is before a colon for the name of a log driver, and
	// what is after the next one for nothing.
	if strings.Contains(req.Log, ":") {
		return invalid("log %q has a colon, which conmon can't do: use another directory", req.Log)
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
	// Everything in this cgroup is killed when the container is deleted, so it
	// must be nobody else's.
	if c := b.Cgroup(); !path.IsAbs(c) || path.Clean(c) != c || !strings.Contains(path.Base(c), req.ID) {
		return invalid("spec %s: linux.cgroupsPath %q must be absolute and end in a name with the container's ID in it", file, c)
	}
	return b, nil
}

// Cgroup is the container's own: the last element has its ID in it.
func (b *Bundle) Cgroup() string { return b.Linux.CgroupsPath }

// SetCgroup has the spec name the cgroup to the runtime in another way.
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

// Owner is the user of the host that the process runs as in a user namespace;
// nil in the host's.
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
