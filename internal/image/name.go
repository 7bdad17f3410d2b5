package image

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// parseName returns the full form of an image name, as docker does: web is
// docker.io/library/web:latest. A digest takes precedence over a tag.
func parseName(name string) (reference.Named, error) {
	named, err := reference.ParseDockerRef(name)
	if err != nil {
		reason := strings.Join(strings.Fields(err.Error()), " ") // it may quote line breaks unescaped
		return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("image name %q is malformed: %s", name, reason))
	}
	return named, nil
}

// CheckName returns an error if no image can have this name.
func CheckName(name string) error {
	_, err := parseName(name)
	return err
}

// DockerHub is the registry that docker and containerd add to a name without one.
const DockerHub = "docker.io"

// RefuseShortNames as Config.ShortNames refuses to pull a name without a registry.
const RefuseShortNames = "refuse"

// shortNames is the registry of names without one: Config.ShortNames.
type shortNames string

// pulled returns the full name by which a name is pulled.
func (s shortNames) pulled(name string) (reference.Named, error) {
	named, err := parseName(name)
	if err != nil || hasRegistry(name, named) || s == DockerHub {
		return named, err
	}
	if s == RefuseShortNames {
		return nil, errdefs.ErrInvalidArgument.WithMessage(
			fmt.Sprintf("image %q: a name without a registry is not pulled, because short-names is %s: use the full name, such as %s", name, RefuseShortNames, named))
	}
	return parseName(string(s) + "/" + name)
}

// fullName returns the full name by which a name is pulled, or "" if it isn't.
func (s shortNames) fullName(name string) string {
	if named, err := s.pulled(name); err == nil {
		return named.String()
	}
	return ""
}

// hasRegistry reports whether name, parsed as named, starts with a registry.
func hasRegistry(name string, named reference.Named) bool {
	return reference.Domain(named) != DockerHub || strings.HasPrefix(name, DockerHub+"/") || strings.HasPrefix(name, "index."+DockerHub+"/")
}

// namesOf returns the names of an image that is pulled as named and whose
// manifest or index is target.
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

// repository returns a full name without its tag or digest.
func repository(name string) string {
	if before, _, found := strings.Cut(name, "@"); found {
		return before
	}
	if colon := strings.LastIndexByte(name, ':'); colon > strings.LastIndexByte(name, '/') {
		return name[:colon]
	}
	return name
}

// isDigestName reports whether a full name ends in a digest.
func isDigestName(name string) bool { return strings.ContainsRune(name, '@') }

// parsePlatform parses a platform such as linux/arm64; empty is this host's.
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
