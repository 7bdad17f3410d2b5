// Package imageapi serves the part of huskd's own API that is about images and registries, apart
// from what package api has.
package imageapi

import (
	"context"
	"encoding/json"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/chunkstream"
	"github.com/huskd/husk/internal/image"
)

// Server serves the API.
type Server struct {
	huskv1.UnimplementedImagesServer
	Images *image.Store
	// Changed is called when an image has got a name.
	Changed func()
}

// TagImage gives an image another name.
func (s *Server) TagImage(ctx context.Context, req *huskv1.TagImageRequest) (*huskv1.TagImageResponse, error) {
	img, full, former, err := s.Images.Tag(ctx, req.Name, req.Tag)
	if err != nil {
		return nil, err
	}
	s.Changed()
	return &huskv1.TagImageResponse{Name: full, Id: img.ID, FormerId: former}, nil
}

// document is what husk image inspect shows. Its fields that docker has too are named as there.
type document struct {
	ID           string              `json:"Id"`
	RepoTags     []string            `json:"RepoTags"`
	RepoDigests  []string            `json:"RepoDigests"`
	Created      *time.Time          `json:"Created,omitempty"`
	Author       string              `json:"Author,omitempty"`
	Architecture string              `json:"Architecture"`
	Variant      string              `json:"Variant,omitempty"`
	OS           string              `json:"Os"`
	Size         int64               `json:"Size"`         // of the blobs, which are compressed
	UnpackedSize int64               `json:"UnpackedSize"` // of the layers, which images may share
	InUse        bool                `json:"InUse"`
	Manifest     ocispec.Descriptor  `json:"Manifest"`
	Config       ocispec.ImageConfig `json:"Config"`
	Layers       []layer             `json:"Layers"` // lowest first
	History      []ocispec.History   `json:"History"`
}

type layer struct {
	Digest    digest.Digest `json:"Digest"` // of the compressed blob
	MediaType string        `json:"MediaType"`
	Size      int64         `json:"Size"`
	DiffID    digest.Digest `json:"DiffID"` // of the uncompressed archive
}

// InspectImage returns everything known about an image.
func (s *Server) InspectImage(ctx context.Context, req *huskv1.InspectImageRequest) (*huskv1.InspectImageResponse, error) {
	d, err := s.Images.Detail(ctx, req.Name)
	if err != nil {
		return nil, err
	}
	doc := document{
		ID: d.ID, RepoTags: d.Tags, RepoDigests: d.Digests, Created: d.Document.Created, Author: d.Document.Author,
		Architecture: d.Document.Architecture, Variant: d.Document.Variant, OS: d.Document.OS,
		Size: d.Size, UnpackedSize: d.Unpacked, InUse: d.InUse, Manifest: d.Manifest, Config: d.Document.Config, History: d.Document.History,
	}
	for i, l := range d.Layers {
		one := layer{Digest: l.Digest, MediaType: l.MediaType, Size: l.Size}
		if ids := d.Document.RootFS.DiffIDs; i < len(ids) {
			one.DiffID = ids[i]
		}
		doc.Layers = append(doc.Layers, one)
	}
	raw, err := json.Marshal(doc)
	return &huskv1.InspectImageResponse{Json: raw}, err
}

// SaveImages sends an archive of images.
func (s *Server) SaveImages(req *huskv1.SaveImagesRequest, stream grpc.ServerStreamingServer[huskv1.SaveImagesResponse]) error {
	out := chunkstream.NewWriter(func(chunk []byte) error { return stream.Send(&huskv1.SaveImagesResponse{Chunk: chunk}) })
	if err := s.Images.Save(stream.Context(), req.Names, out); err != nil {
		return err
	}
	return out.Flush()
}

// PushImage uploads an image.
func (s *Server) PushImage(req *huskv1.PushImageRequest, stream grpc.ServerStreamingServer[huskv1.PushImageEvent]) error {
	name, id, err := s.Images.Push(stream.Context(), req.Name, image.PushOptions{
		To: req.To, Username: req.Username, Password: req.Password,
		Pushed: func(desc ocispec.Descriptor) {
			_ = stream.Send(&huskv1.PushImageEvent{Digest: desc.Digest.String(), Size: desc.Size}) // if it fails, the push ends with the stream
		},
	})
	if err != nil {
		return err
	}
	return stream.Send(&huskv1.PushImageEvent{Name: name, Digest: id.String()})
}

// Login checks and keeps a login.
func (s *Server) Login(ctx context.Context, req *huskv1.LoginRequest) (*huskv1.LoginResponse, error) {
	host, err := s.Images.Logins.Login(ctx, req.Registry, req.Username, req.Password)
	if err != nil {
		return nil, err
	}
	s.Changed() // pods may have waited for it
	return &huskv1.LoginResponse{Registry: host}, nil
}

// Logout forgets a login.
func (s *Server) Logout(_ context.Context, req *huskv1.LogoutRequest) (*huskv1.LogoutResponse, error) {
	host, err := s.Images.Logins.Logout(req.Registry)
	if err != nil {
		return nil, err
	}
	return &huskv1.LogoutResponse{Registry: host}, nil
}
