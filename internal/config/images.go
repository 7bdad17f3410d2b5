package config

import (
	"github.com/distribution/reference"

	"github.com/huskd/husk/internal/image/access"
)

// Images says from where images are pulled, and which pods may use those that the node has.
type Images struct {
	CertsDir     string   `key:"certs-dir" help:"directory of registry configuration, with a HOST/hosts.toml for each registry as in containerd"`
	ShortNames   string   `key:"short-names" help:"registry, with or without a path, of image names without one; refuse pulls only full names"`
	ImageVerify  string   `key:"image-pull-credentials-verification-policy" help:"of which images that the node has pods must show that they may pull them: NeverVerifyPreloadedImages (all that were pulled), NeverVerifyAllowlistedImages (all but those of the allowlist), AlwaysVerify or NeverVerify"`
	ImageAllowed []string `key:"preloaded-images-verification-allowlist" help:"images of NeverVerifyAllowlistedImages, as REGISTRY/PATH or REGISTRY/PATH/* without a tag"`
}

// Verification returns the policy of a configuration that was checked.
func (c Images) Verification() access.Policy {
	p, _ := access.NewPolicy(c.ImageVerify, c.ImageAllowed)
	return p
}

func (c Images) check(bad func(key, format string, args ...any)) {
	if named, err := reference.ParseNormalizedNamed(c.ShortNames + "/a/b"); c.ShortNames != "refuse" && (err != nil || named.Name() != c.ShortNames+"/a/b") {
		bad("short-names", "%q is neither a registry, such as docker.io or registry.example:5000/team, nor refuse", c.ShortNames)
	}
	if _, err := access.NewPolicy(c.ImageVerify, nil); err != nil {
		bad("image-pull-credentials-verification-policy", "%v", err)
	}
	if _, err := access.NewPolicy("", c.ImageAllowed); err != nil {
		bad("preloaded-images-verification-allowlist", "%v", err)
	}
	if c.ImageVerify != access.NeverVerifyAllowlist && len(c.ImageAllowed) > 0 {
		bad("preloaded-images-verification-allowlist", "it has no effect: set image-pull-credentials-verification-policy to %s", access.NeverVerifyAllowlist)
	}
}
