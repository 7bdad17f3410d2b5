package huskdtest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	huskv1 "github.com/huskd/husk/api/v1"
)

// debugging is the fake of huskd's API of containers with tools.
type debugging struct {
	huskv1.UnimplementedDebuggingServer
	h *Huskd
}

// Debug adds a container to a pod. Its program runs at once or, with standard input, when a client
// attaches.
func (d debugging) Debug(req *huskv1.DebugRequest, stream grpc.ServerStreamingServer[huskv1.DebugEvent]) error {
	h := d.h
	h.mu.Lock()
	p, target, err := h.findContainer(req.Name, req.Target)
	h.mu.Unlock()
	switch {
	case err != nil:
		return err
	case req.Image == "":
		return status.Error(codes.InvalidArgument, "husk debug needs the --image that has the tools")
	case h.image(req.Image) == nil && h.registry[req.Image] == nil:
		return status.Errorf(codes.FailedPrecondition, "container debugger of pod %s doesn't start: the registry has no image %s", key(p), req.Image)
	}
	c := &huskv1.Container{Image: req.Image, State: "Running", StartedNs: time.Now().UnixNano()}
	h.change(func() {
		c.Name = fmt.Sprintf("debugger-%d", len(p.Ephemeral))
		c.Id = id(key(p), c.Name)
		p.Ephemeral = append(p.Ephemeral, c)
		h.debuggers[c.Id] = containerSpec{Name: c.Name, Command: req.Args, Stdin: req.Stdin, TTY: req.Tty}
	})
	if program := programs[req.Args[0]]; !req.Stdin && program != nil {
		var out bytes.Buffer
		code := program(&process{ctx: stream.Context(), args: req.Args[1:], stdin: strings.NewReader(""), stdout: &out, stderr: &out})
		for line := range strings.Lines(out.String()) {
			h.AddLog(key(p), c.Name, strings.TrimSuffix(line, "\n"), false, time.Now())
		}
		h.change(func() { c.State, c.ExitCode = "Terminated", int32(code) })
	}
	return stream.Send(&huskv1.DebugEvent{Namespace: p.Namespace, Name: p.Name, Container: c.Name, Target: target.Name, Started: true})
}

// specOf returns the description of a container. The caller holds h.mu.
func specOf(h *Huskd, p *huskv1.Pod, c *huskv1.Container) containerSpec {
	if m, ok := h.debuggers[c.Id]; ok {
		return m
	}
	given := h.given[key(p)].Spec.Containers
	return given[slices.IndexFunc(given, func(m containerSpec) bool { return m.Name == c.Name })]
}
