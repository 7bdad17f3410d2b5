package api

import (
	"context"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent/volume"
)

// volumeServer serves the API of claims.
type volumeServer struct {
	huskv1.UnimplementedVolumesServer
	volumes volume.Volumes
}

// ListVolumes lists the claims of manifests.
func (s volumeServer) ListVolumes(context.Context, *huskv1.ListVolumesRequest) (*huskv1.ListVolumesResponse, error) {
	claims, err := s.volumes.Claims()
	if err != nil {
		return nil, err
	}
	r := &huskv1.ListVolumesResponse{}
	for _, c := range claims {
		r.Volumes = append(r.Volumes, &huskv1.Volume{Namespace: c.Namespace, Name: c.Name, Path: c.Path, Pods: c.Pods})
	}
	return r, nil
}

// RemoveVolume removes a claim and its files.
func (s volumeServer) RemoveVolume(_ context.Context, req *huskv1.RemoveVolumeRequest) (*huskv1.RemoveVolumeResponse, error) {
	return &huskv1.RemoveVolumeResponse{}, s.volumes.RemoveClaim(req.Namespace, req.Name)
}
