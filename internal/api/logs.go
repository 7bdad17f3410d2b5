package api

import (
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/logs"
)

// Logs streams the log of a container's run.
func (s *Server) Logs(req *huskv1.LogsRequest, stream grpc.ServerStreamingServer[huskv1.LogsResponse]) error {
	p, name, err := s.findContainer(req.Name, req.Container)
	if err != nil {
		return err
	}
	run, err := runOf(p, name, req.Previous)
	if err != nil {
		return err
	}
	o := logs.Options{Tail: int(req.Tail), Follow: req.Follow}
	if req.SinceNs != 0 {
		o.Since = time.Unix(0, req.SinceNs)
	}
	if o.Ended, err = s.Containers.Ended(run.ID); err != nil {
		return err
	}
	return logs.Read(stream.Context(), run.Log, o, func(l logs.Line) error {
		return stream.Send(&huskv1.LogsResponse{Line: l.Text, Stderr: l.Stderr, TimeNs: l.Time.UnixNano(), Container: name})
	})
}

func runOf(p agent.Pod, name string, previous bool) (container.Status, error) {
	runs := p.Runs(name)
	switch {
	case len(runs) == 0:
		return container.Status{}, errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("container %s of pod %s has not started: %s", name, p.Name(), waitReason(p, name)))
	case previous && len(runs) == 1:
		return container.Status{}, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("container %s of pod %s has no previous run", name, p.Name()))
	case previous:
		return runs[1], nil
	}
	return runs[0], nil
}

func waitReason(p agent.Pod, name string) string {
	for _, c := range p.Status.Containers {
		if c.Name == name && c.Reason != "" {
			if c.Message != "" {
				return c.Reason + ": " + c.Message
			}
			return c.Reason
		}
	}
	return "see husk ps -a"
}
