package api

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent/objects"
	"github.com/huskd/husk/internal/agent/volume"
	"github.com/huskd/husk/internal/chunkstream"
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
		r.Volumes = append(r.Volumes, volumeMessage(c))
	}
	return r, nil
}

func volumeMessage(c volume.Claim) *huskv1.Volume {
	out := &huskv1.Volume{Namespace: c.Namespace, Name: c.Name, Path: c.Path, Pods: c.Pods, StorageClass: c.Declared.Class}
	if !c.Declared.Size.IsZero() {
		out.Size = c.Declared.Size.String()
	}
	for _, mode := range c.Declared.Modes {
		out.Modes = append(out.Modes, string(mode))
	}
	return out
}

// InspectVolume returns a claim with the space that its files take.
func (s volumeServer) InspectVolume(_ context.Context, req *huskv1.InspectVolumeRequest) (*huskv1.Volume, error) {
	claims, err := s.volumes.Claims()
	if err != nil {
		return nil, err
	}
	for _, c := range claims {
		if c.Namespace == req.Namespace && c.Name == req.Name {
			out := volumeMessage(c)
			out.SizeEnforced = c.Limited()
			out.UsedBytes, err = volume.Used(c.Path)
			return out, err
		}
	}
	return nil, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("no claim %s/%s: husk volume ls lists them", req.Namespace, req.Name))
}

// ExportVolume sends a tar archive of a claim's files.
func (s volumeServer) ExportVolume(req *huskv1.ExportVolumeRequest, stream grpc.ServerStreamingServer[huskv1.VolumeChunk]) error {
	out := chunkstream.NewWriter(func(chunk []byte) error { return stream.Send(&huskv1.VolumeChunk{Chunk: chunk}) })
	if err := s.volumes.Export(stream.Context(), req.Namespace, req.Name, out); err != nil {
		return err
	}
	return out.Flush()
}

// ImportVolume replaces the files of a claim by those of a tar archive.
func (s volumeServer) ImportVolume(stream grpc.ClientStreamingServer[huskv1.ImportVolumeRequest, huskv1.ImportVolumeResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	from := chunkstream.NewReader(first.Chunk, func() ([]byte, error) {
		m, err := stream.Recv()
		return m.GetChunk(), err
	})
	if err := s.volumes.Import(stream.Context(), first.Namespace, first.Name, from); err != nil {
		return err
	}
	return stream.SendAndClose(&huskv1.ImportVolumeResponse{})
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
