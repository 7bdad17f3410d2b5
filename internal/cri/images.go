package cri

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/image"
)

// imageService implements the image service.
type imageService struct {
	runtimeapi.UnsafeImageServiceServer
	*view
}

// ListImages lists images.
func (s *imageService) ListImages(_ context.Context, req *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	list, err := s.list(req.GetFilter())
	return &runtimeapi.ListImagesResponse{Images: list}, err
}

// StreamImages is ListImages for lists of any length.
func (s *imageService) StreamImages(req *runtimeapi.StreamImagesRequest, to grpc.ServerStreamingServer[runtimeapi.StreamImagesResponse]) error {
	list, err := s.list(req.GetFilter())
	if err != nil {
		return err
	}
	return inChunks(list, func(part []*runtimeapi.Image) error {
		return to.Send(&runtimeapi.StreamImagesResponse{Images: part})
	})
}

func (s *imageService) list(filter *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	all := s.Images.List()
	if name := filter.GetImage().GetImage(); name != "" {
		img, err := s.Images.Get(name)
		if err != nil {
			return nil, ignoreNotFound(err)
		}
		all = []image.Image{img}
	}
	var out []*runtimeapi.Image
	for _, img := range all {
		out = append(out, s.message(img))
	}
	return out, nil
}

func (s *imageService) message(img image.Image) *runtimeapi.Image {
	out := imageMessage(img)
	out.Pinned = s.Pinned != nil && s.Pinned(img)
	return out
}

func imageMessage(img image.Image) *runtimeapi.Image {
	out := &runtimeapi.Image{Id: img.ID, RepoTags: img.Tags, RepoDigests: img.Digests, Size: uint64(max(img.Size, 0)), Spec: &runtimeapi.ImageSpec{Image: img.ID}}
	// USER is user or user:group, each a name or a number.
	user, _, _ := strings.Cut(img.Config.User, ":")
	if uid, err := strconv.ParseInt(user, 10, 64); err == nil {
		out.Uid = &runtimeapi.Int64Value{Value: uid}
	} else if user != "" {
		out.Username = user
	} else {
		out.Uid = &runtimeapi.Int64Value{}
	}
	return out
}

// ImageStatus returns the status of an image, or an empty response if there is no such image.
func (s *imageService) ImageStatus(_ context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	img, err := s.named(req.GetImage())
	if err != nil {
		return &runtimeapi.ImageStatusResponse{}, ignoreNotFound(err)
	}
	r := &runtimeapi.ImageStatusResponse{Image: s.message(img)}
	if !req.GetVerbose() {
		return r, nil
	}
	lower, err := s.Images.Rootfs(img.ID)
	if err != nil {
		return nil, err
	}
	system, architecture, _ := strings.Cut(img.Platform, "/")
	spec := map[string]any{"config": img.Config, "created": img.Created, "platform": img.Platform, "os": system, "architecture": architecture}
	info, err := json.Marshal(map[string]any{"imageSpec": spec, "layers": lower, "inUse": img.InUse})
	r.Info = map[string]string{"info": string(info)}
	return r, err
}

func (s *imageService) named(spec *runtimeapi.ImageSpec) (image.Image, error) {
	if spec.GetImage() == "" {
		return image.Image{}, invalid("image name is empty")
	}
	return s.Images.Get(spec.GetImage())
}

// PullImage pulls an image.
func (s *imageService) PullImage(ctx context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	name := req.GetImage().GetImage()
	if name == "" {
		return nil, invalid("image name is empty")
	}
	options, err := login(s.Images.PulledName(name), req.GetAuth())
	if err != nil {
		return nil, err
	}
	img, err := s.Images.Pull(ctx, name, options)
	if err != nil {
		return nil, withContextErr(ctx, err)
	}
	s.ImagesChanged()
	return &runtimeapi.PullImageResponse{ImageRef: img.ID}, nil
}

// login returns the credentials that a pull of name may use. They are valid for one registry only.
func login(name string, auth *runtimeapi.AuthConfig) (image.PullOptions, error) {
	if auth == nil || !validFor(auth.GetServerAddress(), name) {
		return image.PullOptions{}, nil
	}
	o := image.PullOptions{Username: auth.GetUsername(), Password: auth.GetPassword()}
	switch {
	case o.Username != "":
		return o, nil
	case auth.GetIdentityToken() != "":
		o.Password = auth.GetIdentityToken()
	case auth.GetAuth() != "":
		// Like docker's own files, it may be padded with zero bytes.
		plain, err := base64.StdEncoding.DecodeString(auth.GetAuth())
		user, password, ok := strings.Cut(strings.TrimRight(string(plain), "\x00"), ":")
		if err != nil || !ok {
			return o, invalid("image %.80q: the auth of its registry is not base64 of user:password", name)
		}
		o.Username, o.Password = user, password
	case auth.GetRegistryToken() != "":
		if strings.ContainsFunc(auth.GetRegistryToken(), unicode.IsControl) {
			return o, invalid("image %.80q: the registry_token of its registry has a character that is invalid in a header", name)
		}
		o.Token = auth.GetRegistryToken()
	}
	return o, nil
}

// dockerHub are the names of one registry.
var dockerHub = []string{"docker.io", "index.docker.io", "registry-1.docker.io"}

// validFor reports whether credentials for the server at address are valid for the registry of the
// image. Credentials without an address are valid for any.
func validFor(address, name string) bool {
	if address == "" {
		return true
	}
	server := address
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		server = u.Host
	}
	server, _, _ = strings.Cut(server, "/")
	registry, _, _ := strings.Cut(name, "/")
	return server == registry || slices.Contains(dockerHub, server) && slices.Contains(dockerHub, registry)
}

// RemoveImage removes an image and all its names. It succeeds if there is no such image. An image
// in use loses its names only, and can be removed by its ID later.
func (s *imageService) RemoveImage(ctx context.Context, req *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	img, err := s.named(req.GetImage())
	if err == nil {
		_, err = s.Images.Remove(ctx, img.ID, true)
	}
	return &runtimeapi.RemoveImageResponse{}, ignoreNotFound(err)
}

// ImageFsInfo returns the disk usage of images and containers.
func (s *imageService) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	bytes, inodes := s.Images.Usage()
	r := &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{s.filesystem(bytes, inodes)}}
	bytes, inodes = 0, 0
	for st := range s.Containers.Views() {
		layer := s.Meter.Layer(st.ID, s.Containers.Layer(st.ID))
		bytes, inodes = bytes+layer.Bytes, inodes+layer.Inodes
	}
	r.ContainerFilesystems = []*runtimeapi.FilesystemUsage{s.filesystem(bytes, inodes)}
	return r, nil
}

// filesystem returns a usage of the one file system that holds images and containers.
func (v *view) filesystem(bytes, inodes int64) *runtimeapi.FilesystemUsage {
	return &runtimeapi.FilesystemUsage{
		Timestamp: time.Now().UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: v.Root},
		UsedBytes: number(bytes), InodesUsed: number(inodes),
	}
}

func number[T int64 | uint64](n T) *runtimeapi.UInt64Value {
	return &runtimeapi.UInt64Value{Value: uint64(max(n, 0))}
}
