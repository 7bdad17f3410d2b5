package huskdtest

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	huskv1 "github.com/huskd/husk/api/v1"
)

// transferSteps is the number of steps in which a layer is transferred.
const transferSteps = 4

// transfer goes through the stages of a pull and adds the image.
func (h *Huskd) transfer(ctx context.Context, ref string, layers []int64, send func(*huskv1.Progress) error) error {
	p := &huskv1.Progress{Ref: ref, Stage: "resolving"}
	step := func() error {
		if err := send(proto.CloneOf(p)); err != nil {
			return err
		}
		return h.step(ctx)
	}
	if err := step(); err != nil {
		return err
	}
	for _, size := range layers {
		p.TotalBytes += size
		p.Layers = append(p.Layers, &huskv1.Layer{Digest: "sha256:" + id(ref, time.Duration(size).String()), Stage: "waiting", TotalBytes: size})
	}
	for _, stage := range []string{"downloading", "unpacking"} {
		p.Stage, p.DoneBytes = stage, 0
		for _, l := range p.Layers {
			l.Stage, l.DoneBytes = stage, 0
			for range transferSteps {
				n := min(l.TotalBytes/transferSteps+1, l.TotalBytes-l.DoneBytes)
				l.DoneBytes += n
				p.DoneBytes += n
				if err := step(); err != nil {
					return err
				}
			}
			l.Stage = strings.TrimSuffix(stage, "ing") + "ed"
		}
	}
	p.Stage = "done"
	h.AddImage(&huskv1.Image{
		Id: "sha256:" + id("config", ref), Tags: []string{ref}, Digests: []string{repository(ref) + "@sha256:" + id("manifest", ref)},
		Size: p.TotalBytes, CreatedNs: time.Now().Add(-48 * time.Hour).UnixNano(), Platform: "linux/amd64",
	})
	return send(p)
}

func repository(ref string) string {
	if i := strings.LastIndexByte(ref, ':'); i > strings.LastIndexByte(ref, '/') {
		return ref[:i]
	}
	return ref
}

// AddImage adds or replaces an image.
func (h *Huskd) AddImage(i *huskv1.Image) {
	h.change(func() {
		h.images = slices.DeleteFunc(h.images, func(old *huskv1.Image) bool { return old.Id == i.Id })
		h.images = append(h.images, i)
	})
}

// image returns the image with that tag; nil if there is none.
func (h *Huskd) image(ref string) *huskv1.Image {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.IndexFunc(h.images, func(i *huskv1.Image) bool { return slices.Contains(i.Tags, ref) })
	if i < 0 {
		return nil
	}
	return h.images[i]
}

// PullImage pulls from the registry.
func (h *Huskd) PullImage(req *huskv1.PullImageRequest, stream grpc.ServerStreamingServer[huskv1.ImageEvent]) error {
	remote := h.registry[req.Ref]
	switch {
	case remote == nil:
		return status.Errorf(codes.NotFound, "no image %s in its registry: see how it is spelt", req.Ref)
	case remote.username != "" && (req.Username != remote.username || req.Password != remote.password):
		return status.Errorf(codes.Unauthenticated, "the registry refuses to give %s: name a user with --username", req.Ref)
	case req.Platform != "" && req.Platform != "linux/amd64":
		return status.Errorf(codes.NotFound, "image %s has no platform %s, only linux/amd64", req.Ref, req.Platform)
	}
	if h.image(req.Ref) == nil {
		err := h.transfer(stream.Context(), req.Ref, remote.layers, func(p *huskv1.Progress) error {
			return stream.Send(&huskv1.ImageEvent{Progress: p})
		})
		if err != nil {
			return err
		}
	}
	return stream.Send(&huskv1.ImageEvent{Image: h.image(req.Ref)})
}

// chunks is a reader of the archive in a load.
type chunks struct {
	stream grpc.BidiStreamingServer[huskv1.LoadImageRequest, huskv1.ImageEvent]
	rest   []byte
	size   int64
}

func (c *chunks) Read(b []byte) (int, error) {
	for len(c.rest) == 0 {
		m, err := c.stream.Recv()
		if err != nil {
			return 0, err
		}
		c.rest = m.Chunk
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	c.size += int64(n)
	return n, nil
}

// LoadImage loads docker archives, of which it reads only the names.
func (h *Huskd) LoadImage(stream grpc.BidiStreamingServer[huskv1.LoadImageRequest, huskv1.ImageEvent]) error {
	in := &chunks{stream: stream}
	var manifest []struct{ RepoTags []string }
	archive := tar.NewReader(in)
	for {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return status.Error(codes.InvalidArgument, "no image archive: neither OCI nor docker made it")
		}
		if head.Name == "manifest.json" {
			if err := json.NewDecoder(archive).Decode(&manifest); err != nil {
				return status.Errorf(codes.InvalidArgument, "manifest.json of the archive: %v", err)
			}
		}
	}
	if _, err := io.Copy(io.Discard, in); err != nil { // the padding of the archive
		return err
	}
	if len(manifest) == 0 {
		return status.Error(codes.InvalidArgument, "no image archive: it has no manifest.json")
	}
	for _, m := range manifest {
		for _, ref := range m.RepoTags {
			err := h.transfer(stream.Context(), ref, []int64{in.size}, func(p *huskv1.Progress) error {
				if p.Stage == "resolving" || p.Stage == "downloading" {
					return nil
				}
				return stream.Send(&huskv1.ImageEvent{Progress: p})
			})
			if err != nil {
				return err
			}
			if err := stream.Send(&huskv1.ImageEvent{Image: h.image(ref)}); err != nil {
				return err
			}
		}
	}
	return nil
}

// used reports whether a pod uses the image. The caller holds h.mu.
func (h *Huskd) used(i *huskv1.Image) bool {
	for _, p := range h.pods {
		for _, c := range p.Containers {
			if slices.Contains(i.Tags, c.Image) {
				return true
			}
		}
	}
	return i.InUse
}

// ListImages lists images in no particular order.
func (h *Huskd) ListImages(context.Context, *huskv1.ListImagesRequest) (*huskv1.ListImagesResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := &huskv1.ListImagesResponse{}
	for _, i := range slices.Backward(h.images) {
		i = proto.CloneOf(i)
		i.InUse = h.used(i)
		r.Images = append(r.Images, i)
	}
	return r, nil
}

// RemoveImage removes an image by a tag or by a prefix of its ID.
func (h *Huskd) RemoveImage(_ context.Context, req *huskv1.RemoveImageRequest) (r *huskv1.RemoveImageResponse, err error) {
	h.change(func() {
		i := slices.IndexFunc(h.images, func(i *huskv1.Image) bool {
			return slices.Contains(i.Tags, req.Name) || strings.HasPrefix(strings.TrimPrefix(i.Id, "sha256:"), req.Name)
		})
		switch {
		case i < 0:
			err = status.Errorf(codes.NotFound, "no image %s: husk image ls lists them", req.Name)
		case h.used(h.images[i]) && !req.Force:
			err = status.Errorf(codes.FailedPrecondition, "image %s is in use: remove the pods that have it, or use -f", req.Name)
		default:
			r = &huskv1.RemoveImageResponse{Removed: append(slices.Clone(h.images[i].Tags), h.images[i].Id)}
			h.images = slices.Delete(h.images, i, i+1)
		}
	})
	return r, err
}

// PruneImages removes images that no pod uses.
func (h *Huskd) PruneImages(_ context.Context, req *huskv1.PruneImagesRequest) (*huskv1.PruneImagesResponse, error) {
	r := &huskv1.PruneImagesResponse{}
	h.change(func() {
		h.images = slices.DeleteFunc(h.images, func(i *huskv1.Image) bool {
			if h.used(i) || len(i.Tags) > 0 && !req.All {
				return false
			}
			r.Removed = append(append(r.Removed, i.Tags...), i.Id)
			r.FreedBytes += i.Size
			return true
		})
	})
	return r, nil
}
