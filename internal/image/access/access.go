// Package access decides which pods may use an image that the node has, as the kubelet's
// KubeletEnsureSecretPulledImages: with each image goes the record of who may, and a pod that isn't
// in it has to show to the registry that it may pull the image.
package access

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Kind says who may use an image by a Grant.
type Kind string

const (
	// Login is for pods that have the login with which the image was pulled, or the Secret that it
	// came from.
	Login Kind = "login"
	// Node is for all pods: the image was pulled without a login or with one of the node's own, which
	// all pods may use.
	Node Kind = "node"
	// Preloaded is for all pods unless the policy says otherwise: an administrator brought or named
	// the image.
	Preloaded Kind = "preloaded"
)

// maxGrants bounds the logins that are remembered of one image. It is the kubelet's bound.
const maxGrants = 100

// Secret identifies a Secret of a cluster. Its content may change, but not what it is: without the
// UID it would be any Secret of that name.
type Secret struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Credential is a login that a pod has, and the Secret of a cluster that has it, if any.
type Credential struct {
	Hash   string // see Hash
	Secret Secret
}

// Hash identifies a login without containing it.
func Hash(username, password, token string) string {
	raw, _ := json.Marshal([]string{username, password, token}) // strings can be marshalled
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// Grant records that some pods may use an image under the names of a repository.
type Grant struct {
	Repository string    `json:"repository,omitempty"` // empty for an image that was loaded without a name
	Kind       Kind      `json:"kind"`
	Hash       string    `json:"hash,omitempty"`   // of a Login
	Secret     *Secret   `json:"secret,omitempty"` // of a Login, if a Secret of a cluster has it
	Since      time.Time `json:"since"`
}

// Key identifies a grant among those of its image. A Secret has one, whatever its content.
func (g Grant) Key() string {
	g.Since = time.Time{}
	if g.Secret != nil {
		g.Hash = ""
	}
	raw, _ := json.Marshal(g)
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:16])
}

// Encode returns the grant as Decode reads it.
func (g Grant) Encode() string {
	raw, _ := json.Marshal(g)
	return string(raw)
}

// Decode returns the grant that Encode has encoded under its Key. With an error, it is a grant that
// no pod matches: that the image was pulled is known, but not by whom.
func Decode(key, text string) (Grant, error) {
	var g Grant
	err := json.Unmarshal([]byte(text), &g)
	switch {
	case err != nil:
		err = fmt.Errorf("not JSON: %w", err)
	case g.Key() != key:
		err = fmt.Errorf("it is not the record that its key %.40q names", key)
	case !slices.Contains([]Kind{Login, Node, Preloaded}, g.Kind), g.Kind == Login && g.Hash == "":
		err = fmt.Errorf("it says for nobody that the image is usable: its kind is %.40q", g.Kind)
	default:
		return g, nil
	}
	return Grant{Kind: Login}, err
}

// matches reports whether a pod that has a login has the one of the grant. The login of a Secret
// may have changed since, as those do that a controller renews.
func (g Grant) matches(c Credential) bool {
	if g.Kind != Login || g.Hash == "" {
		return false
	}
	return g.Hash == c.Hash || g.Secret != nil && g.Secret.UID != "" && *g.Secret == c.Secret
}

// Grants are those of one image.
type Grants []Grant

// Add returns the grants with another one, and the keys of those that are gone for it. The same
// grant in a newer form takes the place of the older one.
func (s Grants) Add(g Grant) (out Grants, gone []string) {
	key := g.Key()
	out = slices.DeleteFunc(slices.Clone(s), func(old Grant) bool { return old.Key() == key })
	out = append(out, g)
	for count := 0; ; count = 0 {
		oldest := -1
		for i, old := range out {
			if old.Kind != Login || old.Repository != g.Repository {
				continue
			}
			if count++; oldest < 0 || old.Since.Before(out[oldest].Since) {
				oldest = i
			}
		}
		if count <= maxGrants {
			return out, gone
		}
		gone = append(gone, out[oldest].Key())
		out = slices.Delete(out, oldest, oldest+1)
	}
}

// has reports whether there is a grant of a kind for a repository, or with "" for any.
func (s Grants) has(kind Kind, repository string) bool {
	return slices.ContainsFunc(s, func(g Grant) bool { return g.Kind == kind && of(g, repository) })
}

// preloaded reports whether nobody has pulled the image, or an administrator has given it a name of
// the repository.
func (s Grants) preloaded(repository string) bool {
	return s.has(Preloaded, repository) || !s.has(Login, "") && !s.has(Node, "")
}

func of(g Grant, repository string) bool { return repository == "" || g.Repository == repository }

// Policy says of which images pods have to show that they may pull them. Its zero value is the
// default.
type Policy struct {
	mode  string
	allow []string // repositories, and prefixes that end in a slash
}

// The values of a policy, as the kubelet's imagePullCredentialsVerificationPolicy has them.
const (
	NeverVerify           = "NeverVerify"
	NeverVerifyPreloaded  = "NeverVerifyPreloadedImages"
	NeverVerifyAllowlist  = "NeverVerifyAllowlistedImages"
	AlwaysVerify          = "AlwaysVerify"
	allowlistPrefixSuffix = "/*"
)

// Modes are the values of a policy. The first one is the default.
var Modes = []string{NeverVerifyPreloaded, NeverVerifyAllowlist, AlwaysVerify, NeverVerify}

// NewPolicy returns a policy of Modes; "" is the default. allow are the images of
// NeverVerifyAllowlist: REGISTRY/PATH without a tag or digest, or all below REGISTRY/PATH/*.
func NewPolicy(mode string, allow []string) (Policy, error) {
	if mode == "" {
		mode = Modes[0]
	}
	if !slices.Contains(Modes, mode) {
		return Policy{}, fmt.Errorf("%q is not one of %s", mode, strings.Join(Modes, ", "))
	}
	p := Policy{mode: mode}
	for _, pattern := range allow {
		below, wild := strings.CutSuffix(pattern, allowlistPrefixSuffix)
		host, _, _ := strings.Cut(pattern, "/")
		if !strings.ContainsAny(host, ".:") && host != "localhost" || strings.ContainsAny(below, "*@ ") ||
			strings.Contains(pattern[len(host):], ":") || below == "" || !wild && !strings.Contains(pattern, "/") || strings.HasSuffix(below, "/") {
			return Policy{}, fmt.Errorf("%q is not of the form REGISTRY/PATH or REGISTRY/PATH/*, without a tag or digest", pattern)
		}
		if wild {
			below += "/"
		}
		p.allow = append(p.allow, below)
	}
	return p, nil
}

// Off reports whether all pods may use all images.
func (p Policy) Off() bool { return p.mode == NeverVerify }

// Allows reports whether a pod with these logins may use an image by a name of the repository. With
// an empty repository, which is how an ID names the image, it may if it may by any of its names.
// logins returns those that the pod has for a repository. It is only called if they matter.
func (p Policy) Allows(repository string, s Grants, logins func(repository string) []Credential) bool {
	switch p.mode {
	case NeverVerify:
		return true
	case NeverVerifyPreloaded, "":
		if s.preloaded(repository) {
			return true
		}
	case NeverVerifyAllowlist:
		if p.allowlisted(repository) {
			return true
		}
	}
	if s.has(Node, repository) {
		return true
	}
	have := map[string][]Credential{}
	for _, g := range s {
		if g.Kind != Login || !of(g, repository) || logins == nil {
			continue
		}
		if _, asked := have[g.Repository]; !asked {
			have[g.Repository] = logins(g.Repository)
		}
		if slices.ContainsFunc(have[g.Repository], g.matches) {
			return true
		}
	}
	return false
}

func (p Policy) allowlisted(repository string) bool {
	return slices.ContainsFunc(p.allow, func(a string) bool {
		return a == repository || strings.HasSuffix(a, "/") && strings.HasPrefix(repository, a)
	})
}
