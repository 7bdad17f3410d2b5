package api

import (
	"context"

	"github.com/containerd/errdefs"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent/objects"
	"github.com/huskd/husk/internal/agent/volume"
	"github.com/huskd/husk/internal/manifest"
)

// volumeServer serves the API of claims.
type volumeServer struct {
	huskv1.UnimplementedVolumesServer
	volumes volume.Volumes
	objects *objects.Store
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

// RemoveVolume removes a claim and its files, and the object that husk run has kept of it.
func (s volumeServer) RemoveVolume(ctx context.Context, req *huskv1.RemoveVolumeRequest) (*huskv1.RemoveVolumeResponse, error) {
	err := s.volumes.RemoveClaim(req.Namespace, req.Name)
	if err != nil && !errdefs.IsNotFound(err) {
		return nil, err
	}
	forgetErr := s.objects.Remove(ctx, objects.Object{Kind: manifest.KindClaim, Namespace: req.Namespace, Name: req.Name})
	if errdefs.IsNotFound(forgetErr) {
		return &huskv1.RemoveVolumeResponse{}, err
	}
	return &huskv1.RemoveVolumeResponse{}, forgetErr
}
