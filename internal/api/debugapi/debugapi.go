// Package debugapi serves the part of huskd's own API that adds containers with tools to running
// pods.
package debugapi

import (
	"cmp"
	"fmt"
	"os"
	"slices"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/api/podref"
	"github.com/huskd/husk/internal/image"
)

// Server serves the API.
type Server struct {
	huskv1.UnimplementedDebuggingServer
	Agent  *agent.Agent
	Images *image.Store
}

// Debug adds an ephemeral container to a pod.
func (s *Server) Debug(req *huskv1.DebugRequest, stream grpc.ServerStreamingServer[huskv1.DebugEvent]) error {
	p, target, err := podref.Container(s.Agent, req.Name, req.Target)
	if err != nil {
		return err
	}
	if req.Image == "" {
		return errdefs.ErrInvalidArgument.WithMessage(noImage(s.Images))
	}
	if _, err := podref.Live(p, target); err != nil {
		if req.Target != "" {
			return err
		}
		target = "" // its processes can't be shared, but its network can
	}
	c := ephemeralContainer(req, target)
	uid := string(p.Manifest.UID)
	if err := s.Agent.AddEphemeral(uid, c); err != nil {
		return err
	}
	err = s.await(p, c, stream)
	if err != nil {
		// It must not start once the client has gone away.
		if err := s.Agent.GiveUpEphemeral(uid, c.Name, "given up: "+err.Error()); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return err
}

// suffixLength is the length of what makes the name of a container unique.
const suffixLength = 5

func ephemeralContainer(req *huskv1.DebugRequest, target string) corev1.EphemeralContainer {
	return corev1.EphemeralContainer{TargetContainerName: target, EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name: "debugger-" + rand.String(suffixLength), Image: req.Image, ImagePullPolicy: corev1.PullIfNotPresent,
		Command: req.Args, Stdin: req.Stdin, TTY: req.Tty,
		StdinOnce:              req.Stdin && !req.Tty, // a terminal can be detached from
		TerminationMessagePath: corev1.TerminationMessagePathDefault, TerminationMessagePolicy: corev1.TerminationMessageReadFile,
		// As with kubectl debug, tools may look into processes of other users. Those that capture
		// packets, and ping of some images, need NET_RAW.
		SecurityContext: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_PTRACE", "NET_RAW"}}},
	}}
}

// await sends events until the container has started or can't be.
func (s *Server) await(p agent.Pod, c corev1.EphemeralContainer, stream grpc.ServerStreamingServer[huskv1.DebugEvent]) (err error) {
	event := func(message string, started bool) *huskv1.DebugEvent {
		return &huskv1.DebugEvent{
			Namespace: p.Manifest.Namespace, Name: p.Manifest.Name, Container: c.Name, Target: c.TargetContainerName,
			Message: message, Started: started,
		}
	}
	last := ""
	for {
		if p, err = s.Agent.Get(string(p.Manifest.UID)); err != nil {
			return err
		}
		at := slices.IndexFunc(p.Status.Ephemeral, func(s podplan.ContainerStatus) bool { return s.Name == c.Name })
		switch {
		case p.Want != podplan.Run:
			return errdefs.ErrAborted.WithMessage(fmt.Sprintf("pod %s was stopped before container %s started", p.Name(), c.Name))
		case at < 0:
		case p.Status.Ephemeral[at].State != podplan.Waiting:
			return stream.Send(event("", true))
		case failed(p.Status.Ephemeral[at]):
			st := p.Status.Ephemeral[at]
			return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("container %s of pod %s doesn't start: %s", c.Name, p.Name(), cmp.Or(st.Message, st.Reason)))
		}
		if len(p.Pulls) > 0 && last != p.Pulls[0].Ref {
			last = p.Pulls[0].Ref
			if err := stream.Send(event("pulling "+last, false)); err != nil {
				return err
			}
		}
		select {
		case <-p.Newer:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// failed reports whether a container waits because it can't be started.
func failed(st podplan.ContainerStatus) bool {
	return st.Reason != "" && st.Reason != podplan.ReasonCreating && st.Reason != podplan.ReasonInitializing
}

// noImage asks for an image, and names one with a shell if the node has any.
func noImage(images *image.Store) string {
	const text = "husk debug needs the --image that has the tools"
	all := images.List()
	slices.SortStableFunc(all, func(a, b image.Image) int { return cmp.Compare(b.Unpacked, a.Unpacked) }) // more tools first
	for _, img := range all {
		if len(img.Tags) > 0 && hasShell(images, img.ID) {
			return fmt.Sprintf("%s: --image %s has a shell, and is on this node", text, img.Tags[0])
		}
	}
	return text + ", such as --image busybox"
}

// hasShell reports whether an image has /bin/sh.
func hasShell(images *image.Store, id string) bool {
	release, err := images.Hold(id, "husk debug")
	if err != nil {
		return false
	}
	defer release()
	layers, err := images.Rootfs(id)
	return err == nil && slices.ContainsFunc(layers, func(dir string) bool {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return false
		}
		defer root.Close()
		for _, shell := range []string{"bin/sh", "usr/bin/sh"} {
			if _, err := root.Lstat(shell); err == nil {
				return true
			}
		}
		return false
	})
}
