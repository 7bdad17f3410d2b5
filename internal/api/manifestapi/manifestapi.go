// Package manifestapi serves the part of huskd's own API that writes manifests.
package manifestapi

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/api/podref"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/minimal"
	"github.com/huskd/husk/internal/workload"
)

// Server serves the API of manifests.
type Server struct {
	huskv1.UnimplementedManifestsServer
	Agent *agent.Agent
}

// Generate returns the manifest of a pod.
func (s *Server) Generate(_ context.Context, req *huskv1.GenerateRequest) (*huskv1.GenerateResponse, error) {
	p, err := podref.Pod(s.Agent, req.Name)
	if ref, ok := workload.ParseRef(req.Name, manifest.DefaultNamespace); ok && errdefs.IsNotFound(err) {
		return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("%s is a workload, and husk only writes the manifests of pods: name one of its pods, or use the file that it came from", ref))
	}
	if err != nil {
		return nil, err
	}
	text, err := minimal.Pod(p.Manifest)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errdefs.ErrFailedPrecondition, err)
	}
	return &huskv1.GenerateResponse{Yaml: text}, nil
}
