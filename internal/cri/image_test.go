package cri

import (
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/image"
)

// imageOf is the message of an image with this USER.
func imageOf(user string) *runtimeapi.Image {
	return imageMessage(image.Image{Config: ocispec.ImageConfig{User: user}})
}
