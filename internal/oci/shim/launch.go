package shim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	bootstrap "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/conmon"
)

// endpoint is the address of a shim and the protocol that it speaks.
type endpoint struct {
	Address string `json:"address"`
	// Version of the task service, 2 or 3.
	Version int `json:"version"`
}

const unixScheme = "unix://"

// socket returns the address in the form of package net. An address without a scheme is the name of
// an abstract socket.
func (e endpoint) socket() string {
	if path, ok := strings.CutPrefix(e.Address, unixScheme); ok {
		return path
	}
	return "\x00" + e.Address
}

// parseEndpoint reads the output of a shim's start command. It is a message of the newest protocol,
// JSON of the one before, or only the address. A message begins with the tag of a field below 8,
// which is a control character.
func parseEndpoint(out []byte) (endpoint, error) {
	text := strings.TrimSpace(string(out))
	var result struct {
		Version           int
		Address, Protocol string
	}
	switch {
	case text == "":
		return endpoint{}, errors.New("the shim prints no address")
	case strings.HasPrefix(text, "{"):
		if err := json.Unmarshal([]byte(text), &result); err != nil {
			return endpoint{}, fmt.Errorf("the shim prints %.80q: %w", text, err)
		}
	case out[0] < ' ':
		var m bootstrap.BootstrapResult
		if err := proto.Unmarshal(out, &m); err != nil {
			return endpoint{}, fmt.Errorf("the shim prints %.80q: %w", out, err)
		}
		result.Version, result.Address, result.Protocol = int(m.GetVersion()), m.GetAddress(), m.GetProtocol()
	default:
		result.Version, result.Address, result.Protocol = 2, text, "ttrpc"
	}
	if !strings.EqualFold(result.Protocol, "ttrpc") || result.Version < 2 || result.Version > 3 {
		return endpoint{}, fmt.Errorf("the shim speaks %.20q version %d: want version 2 or 3 over ttrpc", result.Protocol, result.Version)
	}
	// Other schemes are sockets into virtual machines.
	e := endpoint{result.Address, result.Version}
	if result.Address == "" || strings.ContainsAny(result.Address, "\x00\n") || strings.Contains(strings.TrimPrefix(result.Address, unixScheme), "://") {
		return endpoint{}, fmt.Errorf("the shim's address %.80q is not that of a local socket", result.Address)
	}
	return e, nil
}

// options returns the shim's configuration; nil if there is none. Shims take it by the name of its
// type without the usual prefix.
func (h Handler) options() (*anypb.Any, error) {
	if h.Config == "" {
		return nil, nil
	}
	o := &runtimeoptions.Options{ConfigPath: h.Config}
	if h.Runtime() == gvisor {
		// gVisor's shim requires the type. Kata's in Rust, up to 3.20, reads the path at the place
		// where it is without one.
		o.TypeUrl = h.optionsType()
	}
	raw, err := proto.Marshal(o)
	return &anypb.Any{TypeUrl: string(o.ProtoReflect().Descriptor().FullName()), Value: raw}, err
}

// startLimit bounds a run of the shim's program. Kata doesn't boot anything yet at this point.
const startLimit = 30 * time.Second

// place is where a shim's program runs.
type place struct {
	dir    string
	cgroup *os.File // its directory, on cgroup v2; nil for this process's
}

// launch starts a shim for the bundle in a directory by the shim's program.
func (h Handler) launch(ctx context.Context, in place, id string) (endpoint, error) {
	input, err := h.startInput(id)
	if err != nil {
		return endpoint{}, err
	}
	out, complaint, err := h.run(ctx, in, input, id, "start")
	if err != nil {
		return endpoint{}, err
	}
	e, err := parseEndpoint(out)
	if err != nil && complaint != "" {
		err = fmt.Errorf("%w: %s", err, complaint)
	}
	return e, err
}

// startInput returns the stdin of a start: a message of the newest protocol, or for shims of before
// containerd 2.3 the options alone.
func (h Handler) startInput(id string) ([]byte, error) {
	options, err := h.options()
	if err != nil {
		return nil, err
	}
	if h.Old {
		if options == nil {
			return nil, nil
		}
		return proto.Marshal(options)
	}
	params := &bootstrap.BootstrapParams{InstanceID: id, Namespace: namespace}
	if options != nil {
		if err := params.AddExtension(options); err != nil {
			return nil, err
		}
	}
	return proto.Marshal(params)
}

// deleteLeftovers makes the shim's program delete the container of a shim that is gone.
func (h Handler) deleteLeftovers(ctx context.Context, dir, id string) error {
	_, _, err := h.run(ctx, place{dir: dir}, nil, id, "-bundle", dir, "delete")
	return err
}

// version asks the shim's program for its version. Shims older than containerd 1.3 reject -v, and
// some of them know --version as the only flag.
func (h Handler) version(ctx context.Context, dir string) string {
	if out, _, err := h.run(ctx, place{dir: dir}, nil, "version", "-v"); err == nil {
		return parseVersion(string(out))
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, h.Path, "--version")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	return parseVersion(string(out))
}

// ownerVariable is the variable in the environment of a shim and all that it starts. Its value is
// the ID of the container that the shim was started for.
const ownerVariable = "HUSK_SHIM_OF="

// publisher returns the program that publishes a shim's events: one that does nothing. Kata's shim
// in Rust insists on one.
func publisher() string {
	if path := conmon.Locate("true"); path != "" {
		return path
	}
	return "true"
}

// run runs the shim's program and returns what it printed to stdout and, in one line, to
// stderr. The error is the latter too.
func (h Handler) run(ctx context.Context, in place, input []byte, id string, args ...string) (out []byte, complaint string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("%s took longer than %v", h.Path, startLimit))
	defer cancel()
	cmd := exec.CommandContext(ctx, h.Path, append([]string{"-namespace", namespace, "-id", id, "-address", "", "-publish-binary", publisher()}, args...)...)
	cmd.Dir = in.dir
	cmd.Env = []string{"PATH=" + conmon.Path, "NAMESPACE=" + namespace, "MAX_SHIM_VERSION=2", "GOMAXPROCS=2", ownerVariable + id}
	cmd.Stdin = bytes.NewReader(input)
	// The shim's daemon must not die with huskd's terminal.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if in.cgroup != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(in.cgroup.Fd())
	}
	// The daemon may have kept the pipes open.
	cmd.WaitDelay = time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err = cmd.Output()
	complaint = oci.OneLine(stderr.String())
	switch {
	case ctx.Err() != nil:
		return nil, "", context.Cause(ctx)
	case err != nil && complaint != "":
		return nil, "", errors.New(complaint)
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		return nil, "", fmt.Errorf("%s: %w", h.Path, err)
	}
	return out, complaint, nil
}
