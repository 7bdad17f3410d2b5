package huskdtest

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/yaml"

	huskv1 "github.com/huskd/husk/api/v1"
)

// manifests is the fake of huskd's API of manifests.
type manifests struct {
	huskv1.UnimplementedManifestsServer
	h *Huskd
}

// Generate returns what was read of a pod's manifest.
func (m manifests) Generate(_ context.Context, req *huskv1.GenerateRequest) (*huskv1.GenerateResponse, error) {
	m.h.mu.Lock()
	defer m.h.mu.Unlock()
	p, c, err := m.h.find(req.Name)
	if err != nil {
		return nil, err
	}
	if c != nil {
		return nil, status.Errorf(codes.InvalidArgument, "%s is a container: name the pod", req.Name)
	}
	text, err := yaml.Marshal(m.h.given[key(p)])
	return &huskv1.GenerateResponse{Yaml: append([]byte("apiVersion: v1\n"), text...)}, err
}
