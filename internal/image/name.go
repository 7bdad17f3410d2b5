package image

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// parseName returns the whole name that name stands for, as docker reads it:
// web is docker.io/library/web:latest. Of a name with both, the digest counts
// and not the tag.
func parseName(name string) (reference.Named, error) {
	named, err := reference.ParseDockerRef(name)
	if err != nil {
		reason := strings.Join(strings.Fields(err.Error()), " ") // it may quote line breaks as they are
		return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("image name %q is malformed: %s", name, reason))
	}
	return named, nil
}

// hasRegistry says whether a name, parsed as named, begins with that of a
// registry, and so says itself where it is to be pulled from.
func hasRegistry(name string, named reference.Named) bool {
	const docker = "docker.io" // which is what a name without one is taken to be of
	return reference.Domain(named) != docker || strings.HasPrefix(name, docker+"/") || strings.HasPrefix(name, "index."+docker+"/")
}

// namesOf returns the names that an image gets when it is pulled as named and
// its manifest or index has this digest.
func namesOf(named reference.Named, target ocispec.Descriptor) ([]string, error) {
	byDigest, err := reference.WithDigest(reference.TrimNamed(named), target.Digest)
	if err != nil {
		return nil, err
	}
	if named.String() == byDigest.String() {
		return []string{byDigest.String()}, nil
	}
	return []string{named.String(), byDigest.String()}, nil
}

// repository returns a whole name without its tag or digest.
func repository(name string) string {
	if before, _, found := strings.Cut(name, "@"); found {
		return before
	}
	if colon := strings.LastIndexByte(name, ':'); colon > strings.LastIndexByte(name, '/') {
		return name[:colon]
	}
	return name
}

// isDigestName says whether a whole name ends in a digest.
func isDigestName(name string) bool { return strings.ContainsRune(name, '@') }

// parsePlatform reads a platform such as linux/arm64; empty is this host's.
func parsePlatform(platform string) (ocispec.Platform, error) {
	if platform == "" {
		return platforms.DefaultSpec(), nil
	}
	p, err := platforms.Parse(platform)
	if err != nil {
		return p, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("platform %q: %v: write it as linux/amd64", platform, err))
	}
	return platforms.Normalize(p), nil
}
