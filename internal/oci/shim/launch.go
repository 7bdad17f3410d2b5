package shim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// endpoint is where and how a shim is spoken to.
type endpoint struct {
	Address string `json:"address"`
	// Version of the task service, 2 or 3.
	Version int `json:"version"`
}

const unixScheme = "unix://"

// socket is the address as package net has it. Without a scheme it is the name
// of an abstract socket.
func (e endpoint) socket() string {
	if path, ok := strings.CutPrefix(e.Address, unixScheme); ok {
		return path
	}
	return "\x00" + e.Address
}

// parseEndpoint reads what a shim's start prints: a message of the newest
// protocol, JSON of the one before, or just the address. The message begins
// with the tag of a field below 8, a control character.
func parseEndpoint(out []byte) (endpoint, error) {
	text := strings.TrimSpace(string(out))
	var said struct {
		Version           int
		Address, Protocol string
	}
	switch {
	case text == "":
		return endpoint{}, errors.New("its start prints no address")
	case strings.HasPrefix(text, "{"):
		if err := json.Unmarshal([]byte(text), &said); err != nil {
			return endpoint{}, fmt.Errorf("its start prints %.80q: %w", text, err)
		}
	case out[0] < ' ':
		var m bootstrap.BootstrapResult
		if err := proto.Unmarshal(out, &m); err != nil {
			return endpoint{}, fmt.Errorf("its start prints %.80q: %w", out, err)
		}
		said.Version, said.Address, said.Protocol = int(m.GetVersion()), m.GetAddress(), m.GetProtocol()
	default:
		said.Version, said.Address, said.Protocol = 2, text, "ttrpc"
	}
	if !strings.EqualFold(said.Protocol, "ttrpc") || said.Version < 2 || said.Version > 3 {
		return endpoint{}, fmt.Errorf("it speaks %.20q version %d: only versions 2 and 3 over ttrpc are known", said.Protocol, said.Version)
	}
	// Another scheme is a socket into a virtual machine.
	e := endpoint{said.Address, said.Version}
	if said.Address == "" || strings.ContainsAny(said.Address, "\x00\n") || strings.Contains(strings.TrimPrefix(said.Address, unixScheme), "://") {
		return endpoint{}, fmt.Errorf("its address %.80q is not that of a local socket", said.Address)
	}
	return e, nil
}

// options are what the handler's configuration says to the shim; nil for none.
// Its shims take them by the name without the usual prefix.
func (h Handler) options() (*anypb.Any, error) {
	if h.Config == "" {
		return nil, nil
	}
	o := &runtimeoptions.Options{TypeUrl: h.optionsType(), ConfigPath: h.Config}
	raw, err := proto.Marshal(o)
	return &anypb.Any{TypeUrl: string(o.ProtoReflect().Descriptor().FullName()), Value: raw}, err
}

// startLimit bounds a run of the shim's program, which for Kata boots nothing
// yet.
const startLimit = 30 * time.Second

// launch has the shim's program start a shim for the bundle in dir.
func (h Handler) launch(ctx context.Context, dir, id string) (endpoint, error) {
	input, err := h.startInput(id)
	if err != nil {
		return endpoint{}, err
	}
	out, err := h.run(ctx, dir, input, id, "start")
	if err != nil {
		return endpoint{}, err
	}
	return parseEndpoint(out)
}

// input is what a start is told: a message of the newest protocol, which shims of
// before containerd 2.3 take for the options that they expect, or those.
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

// cleanUp has the shim's program end and delete the container of a shim that is
// no more.
func (h Handler) deleteLeftovers(ctx context.Context, dir, id string) error {
	_, err := h.run(ctx, dir, nil, id, "-bundle", dir, "delete")
	return err
}

// run runs the shim's program in dir and returns what it printed. An error has
// what it complained of.
func (h Handler) run(ctx context.Context, dir string, input []byte, id string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("%s took longer than %v", h.Path, startLimit))
	defer cancel()
	cmd := exec.CommandContext(ctx, h.Path, append([]string{"-namespace", namespace, "-id", id, "-address", ""}, args...)...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + conmon.Path, "NAMESPACE=" + namespace, "MAX_SHIM_VERSION=2", "GOMAXPROCS=2"}
	cmd.Stdin = bytes.NewReader(input)
	// A shim that outlives its start must not die with our terminal.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// It may have kept the pipes that we read.
	cmd.WaitDelay = time.Second
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil && complaint.Len() > 0:
		return nil, errors.New(oci.OneLine(complaint.String()))
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		return nil, fmt.Errorf("%s: %w", h.Path, err)
	}
	return out, nil
}
