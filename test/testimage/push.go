package testimage

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Registry is a registry to push to.
type Registry struct {
	URL string // for example http://127.0.0.1:5000
	// Client sends the requests; nil is http.DefaultClient.
	Client *http.Client
}

// Push stores the image in a repository under a tag.
func (r Registry) Push(ctx context.Context, repository, tag string, img *Image) error {
	if err := r.pushBlobs(ctx, repository, img); err != nil {
		return err
	}
	return r.putManifest(ctx, repository, tag, ocispec.MediaTypeImageManifest, img.Manifest)
}

// PushIndex stores images of several platforms in a repository under one tag, and returns the
// digest of their index.
func (r Registry) PushIndex(ctx context.Context, repository, tag string, images ...*Image) (digest.Digest, error) {
	for _, img := range images {
		if err := r.Push(ctx, repository, img.Descriptor.Digest.String(), img); err != nil {
			return "", err
		}
	}
	index, err := Index(images...)
	if err != nil {
		return "", err
	}
	return digest.FromBytes(index), r.putManifest(ctx, repository, tag, ocispec.MediaTypeImageIndex, index)
}

func (r Registry) pushBlobs(ctx context.Context, repository string, img *Image) error {
	for d, blob := range img.Blobs() {
		location, err := r.do(ctx, http.MethodPost, r.URL+"/v2/"+repository+"/blobs/uploads/", "", nil)
		if err != nil {
			return err
		}
		query := location.Query()
		query.Set("digest", d.String())
		location.RawQuery = query.Encode()
		if _, err := r.do(ctx, http.MethodPut, location.String(), "application/octet-stream", blob); err != nil {
			return err
		}
	}
	return nil
}

func (r Registry) putManifest(ctx context.Context, repository, tag, mediaType string, raw []byte) error {
	_, err := r.do(ctx, http.MethodPut, r.URL+"/v2/"+repository+"/manifests/"+tag, mediaType, raw)
	return err
}

// do sends one request and returns the Location of its response, or else the request's URL.
func (r Registry) do(ctx context.Context, method, target, mediaType string, body []byte) (*url.URL, error) {
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if mediaType != "" {
		req.Header.Set("Content-Type", mediaType)
	}
	client := r.Client
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("push: %w", err)
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if resp.StatusCode >= http.StatusMultipleChoices {
		return nil, fmt.Errorf("push: %s %s: %s: %s", method, req.URL.Path, resp.Status, answer)
	}
	location, err := resp.Location()
	if err != nil {
		return req.URL, nil // the answer points nowhere
	}
	return location, nil
}
