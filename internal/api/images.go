package api

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/image/access"
)

// PullImage pulls an image.
func (s *Server) PullImage(req *huskv1.PullImageRequest, stream grpc.ServerStreamingServer[huskv1.ImageEvent]) error {
	img, err := s.Images.Pull(stream.Context(), req.Ref, image.PullOptions{
		Platform: req.Platform, Username: req.Username, Password: req.Password,
		Access: access.Preloaded, // whoever reaches this socket is the administrator
		Progress: func(p image.Progress) {
			_ = stream.Send(&huskv1.ImageEvent{Progress: progress(p)}) // if it fails, the pull ends with the stream
		},
	})
	if err != nil {
		return err
	}
	s.Agent.ImagesChanged()
	return stream.Send(&huskv1.ImageEvent{Image: imageMessage(img)})
}

// LoadImage loads the images of an archive.
func (s *Server) LoadImage(stream grpc.BidiStreamingServer[huskv1.LoadImageRequest, huskv1.ImageEvent]) error {
	archive, chunks := io.Pipe()
	defer archive.Close()
	go func() {
		for {
			m, err := stream.Recv()
			if err == nil {
				_, err = chunks.Write(m.Chunk)
			}
			if err != nil {
				if errors.Is(err, io.EOF) {
					err = nil
				}
				chunks.CloseWithError(err)
				return
			}
		}
	}()
	images, err := s.Images.Load(stream.Context(), archive, func(p image.Progress) {
		_ = stream.Send(&huskv1.ImageEvent{Progress: progress(p)})
	})
	if err != nil {
		return err
	}
	s.Agent.ImagesChanged()
	for _, img := range images {
		if err := stream.Send(&huskv1.ImageEvent{Image: imageMessage(img)}); err != nil {
			return err
		}
	}
	return nil
}

// ListImages lists images.
func (s *Server) ListImages(context.Context, *huskv1.ListImagesRequest) (*huskv1.ListImagesResponse, error) {
	r := &huskv1.ListImagesResponse{}
	for _, img := range s.Images.List() {
		r.Images = append(r.Images, imageMessage(img))
	}
	return r, nil
}

// RemoveImage removes an image or one of its names.
func (s *Server) RemoveImage(ctx context.Context, req *huskv1.RemoveImageRequest) (*huskv1.RemoveImageResponse, error) {
	removed, err := s.Images.Remove(ctx, req.Name, req.Force)
	return &huskv1.RemoveImageResponse{Removed: removed}, err
}

// PruneImages removes images that no container uses.
func (s *Server) PruneImages(ctx context.Context, req *huskv1.PruneImagesRequest) (*huskv1.PruneImagesResponse, error) {
	report, err := s.Images.Prune(ctx, req.All)
	return &huskv1.PruneImagesResponse{Removed: report.Removed, FreedBytes: report.Freed}, err
}

func imageMessage(img image.Image) *huskv1.Image {
	return &huskv1.Image{
		Id: img.ID, Tags: img.Tags, Digests: img.Digests, Size: img.Size,
		CreatedNs: nanoseconds(img.Created), InUse: img.InUse, Platform: img.Platform,
	}
}

func progress(p image.Progress) *huskv1.Progress {
	out := &huskv1.Progress{Ref: p.Ref, Stage: p.Stage, DoneBytes: p.Done, TotalBytes: p.Total}
	for _, l := range p.Layers {
		out.Layers = append(out.Layers, &huskv1.Layer{Digest: l.Digest, Stage: l.Stage, DoneBytes: l.Done, TotalBytes: l.Total})
	}
	return out
}
