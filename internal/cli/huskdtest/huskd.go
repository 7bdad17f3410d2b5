// Package huskdtest provides a fake huskd that needs no host: its pods and images are in memory,
// and their programs are functions. Conformance tests the behaviour that clients may expect of both
// the fake and the real huskd.
package huskdtest

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	huskv1 "github.com/huskd/husk/api/v1"
)

// Huskd is a fake of huskd's API.
type Huskd struct {
	huskv1.UnimplementedHuskServer
	registry map[string]*remote

	mu      sync.Mutex    // guards the fields below
	changed chan struct{} // closed and replaced whenever they change
	pace    time.Duration // time between the steps of a pull
	checks  []*huskv1.Check
	debts   []*huskv1.Attachment
	events  []*huskv1.Event
	pods    []*huskv1.Pod
	given   map[string]*document // manifests by pod, namespace/name
	// debuggers are the ephemeral containers by ID.
	debuggers map[string]containerSpec
	logs      map[string][]*huskv1.LogsResponse
	images    []*huskv1.Image
	server    *grpc.Server
}

// remote is an image in the registry.
type remote struct {
	layers []int64 // sizes
	// username and password are required to pull it, if set.
	username, password string
}

// New returns a huskd with a few images in its registry. It doesn't listen yet.
func New() *Huskd {
	return &Huskd{
		registry: map[string]*remote{
			"localhost/web:latest":     {layers: []int64{27_000_000, 3_000_000, 100_000}},
			"localhost/db:1":           {layers: []int64{90_000_000}},
			"localhost/private:latest": {layers: []int64{1000}, username: "me", password: "secret"},
		},
		pace:      time.Millisecond,
		changed:   make(chan struct{}),
		given:     map[string]*document{},
		debuggers: map[string]containerSpec{},
		logs:      map[string][]*huskv1.LogsResponse{},
	}
}

// SetPace sets the time between the steps of a pull.
func (h *Huskd) SetPace(d time.Duration) { h.change(func() { h.pace = d }) }

// SetChecks sets the answer of Doctor.
func (h *Huskd) SetChecks(checks []*huskv1.Check) { h.change(func() { h.checks = checks }) }

// SetDebts sets the DELs that are owed. A retry succeeds for those without an error.
func (h *Huskd) SetDebts(debts []*huskv1.Attachment) { h.change(func() { h.debts = debts }) }

// Listen serves on the unix socket at path until Close.
func (h *Huskd) Listen(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.server = grpc.NewServer()
	server := h.server
	h.mu.Unlock()
	huskv1.RegisterHuskServer(server, h)
	huskv1.RegisterSystemServer(server, system{h: h})
	huskv1.RegisterStorageServer(server, storage{h: h})
	huskv1.RegisterManifestsServer(server, manifests{h: h})
	huskv1.RegisterDebuggingServer(server, debugging{h: h})
	go func() { _ = server.Serve(l) }() // ended by Close
	return nil
}

// Close closes all connections and stops listening.
func (h *Huskd) Close() {
	h.mu.Lock()
	server := h.server
	h.server = nil
	h.mu.Unlock()
	if server != nil {
		server.Stop()
	}
}

// crash calls Close from within a call, for which Close would wait.
func (h *Huskd) crash() { go h.Close() }

// change runs do, then wakes all waiters.
func (h *Huskd) change(do func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	do()
	close(h.changed)
	h.changed = make(chan struct{})
}

// until waits until done returns true. done is called with the lock held.
func (h *Huskd) until(ctx context.Context, done func() bool) error {
	for {
		h.mu.Lock()
		ok, changed := done(), h.changed
		h.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// step waits for the time of one step.
func (h *Huskd) step(ctx context.Context) error {
	h.mu.Lock()
	pace := h.pace
	h.mu.Unlock()
	select {
	case <-time.After(pace):
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// find returns the pod with that name or ID, and the container if name is a container ID. The
// caller holds h.mu.
func (h *Huskd) find(name string) (*huskv1.Pod, *huskv1.Container, error) {
	name = strings.TrimPrefix(name, "pod/")
	ref := name
	if !strings.Contains(ref, "/") {
		ref = "default/" + ref
	}
	var pods []*huskv1.Pod
	var container *huskv1.Container
	for _, p := range h.pods {
		if key(p) == ref {
			return p, nil, nil
		}
		if strings.HasPrefix(p.Id, name) || strings.HasPrefix(p.Uid, name) {
			pods = append(pods, p)
			continue
		}
		for _, c := range p.Containers {
			if c.Id != "" && strings.HasPrefix(c.Id, name) {
				pods, container = append(pods, p), c
			}
		}
	}
	switch len(pods) {
	case 0:
		return nil, nil, status.Errorf(codes.NotFound, "no pod %s: husk ps -a lists them", name)
	case 1:
		return pods[0], container, nil
	default:
		return nil, nil, status.Errorf(codes.InvalidArgument, "%s begins the IDs of %d pods: give more of it", name, len(pods))
	}
}

func key(p *huskv1.Pod) string { return p.Namespace + "/" + p.Name }

// findContainer returns a pod and one of its containers. The caller holds h.mu.
func (h *Huskd) findContainer(name, container string) (*huskv1.Pod, *huskv1.Container, error) {
	p, c, err := h.find(name)
	if err != nil || c != nil && container == "" {
		return p, c, err
	}
	var apps, all []string
	for _, c := range p.Containers {
		all = append(all, c.Name)
		if !c.Init {
			apps = append(apps, c.Name)
		}
	}
	if container == "" && len(apps) != 1 {
		return nil, nil, status.Errorf(codes.InvalidArgument, "pod %s has the containers %s: name one with -c", key(p), strings.Join(all, ", "))
	}
	if container == "" {
		container = apps[0]
	}
	list := slices.Concat(p.Containers, p.Ephemeral)
	i := slices.IndexFunc(list, func(c *huskv1.Container) bool { return c.Name == container })
	if i < 0 {
		return nil, nil, status.Errorf(codes.NotFound, "pod %s has no container %s, only %s", key(p), container, strings.Join(all, ", "))
	}
	return p, list[i], nil
}

// Version returns constant versions.
func (h *Huskd) Version(context.Context, *huskv1.VersionRequest) (*huskv1.VersionResponse, error) {
	return &huskv1.VersionResponse{
		Version: "v1.2.3", Commit: "0123456789abcdef", GoVersion: "go1.26.8",
		Runtime: "runc 1.1.5", Root: "/var/lib/husk", State: "/run/husk", Pid: 4711,
	}, nil
}

// Doctor returns the checks that were set.
func (h *Huskd) Doctor(context.Context, *huskv1.DoctorRequest) (*huskv1.DoctorResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return &huskv1.DoctorResponse{Checks: h.checks}, nil
}

// ListAttachments returns an attachment for each running pod, and the debts.
func (h *Huskd) ListAttachments(context.Context, *huskv1.ListAttachmentsRequest) (*huskv1.ListAttachmentsResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []*huskv1.Attachment
	for _, p := range h.pods {
		if p.Phase != "Running" || p.HostNetwork {
			continue
		}
		a := &huskv1.Attachment{Network: "husk", Interface: "eth0", Namespace: p.Namespace, Name: p.Name, Sandbox: p.Id, Netns: "/run/netns/" + p.Id}
		for _, ip := range p.Ips {
			a.Addresses = append(a.Addresses, ip+"/16")
		}
		list = append(list, a)
	}
	return &huskv1.ListAttachmentsResponse{Attachments: append(list, h.debts...)}, nil
}

// RetryDebts removes the debts without an error.
func (h *Huskd) RetryDebts(context.Context, *huskv1.RetryDebtsRequest) (*huskv1.RetryDebtsResponse, error) {
	var failed error
	h.change(func() {
		h.debts = slices.DeleteFunc(h.debts, func(a *huskv1.Attachment) bool { return a.Error == "" })
		for _, a := range h.debts {
			a.Tries++
			failed = status.Error(codes.Unknown, a.Error)
		}
	})
	return &huskv1.RetryDebtsResponse{}, failed
}

// Shutdown stops the pods one after the other, then closes every connection.
func (h *Huskd) Shutdown(_ *huskv1.ShutdownRequest, stream grpc.ServerStreamingServer[huskv1.ShutdownEvent]) error {
	for {
		var next *huskv1.Pod
		h.change(func() {
			i := slices.IndexFunc(h.pods, func(p *huskv1.Pod) bool { return p.Phase == "Running" || p.Phase == "Pending" })
			if i >= 0 {
				next = h.pods[i]
				stop(next)
			}
		})
		if next == nil {
			break
		}
		if err := stream.Send(&huskv1.ShutdownEvent{Namespace: next.Namespace, Name: next.Name, Message: "stopped"}); err != nil {
			return err
		}
	}
	go func() { // after the stream has ended
		h.mu.Lock()
		server := h.server
		h.mu.Unlock()
		if server != nil {
			server.GracefulStop()
		}
	}()
	return nil
}
