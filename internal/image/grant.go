package image

import (
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"

	"github.com/huskd/husk/internal/image/access"
	"github.com/huskd/husk/internal/image/registry"
)

// Credential returns how a login, and the Secret of a cluster that it comes from, if any, are known
// from an earlier pull.
func Credential(username, password string, secret access.Secret) access.Credential {
	return access.Credential{Hash: access.Hash(username, password, ""), Secret: secret}
}

// GetFor returns an image by a name as Get does, for a pod that has these logins. allowed says
// whether the pod may use the image; if not, a pull shows whether its registry lets it. logins
// returns those for a repository, and is only called if they matter.
func (s *Store) GetFor(name string, logins func(repository string) []access.Credential) (img Image, allowed bool, err error) {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	for e, full := range s.index.candidates(name) {
		if s.verify.Allows(repository(full), e.grants, logins) {
			return e.image(), true, nil
		}
	}
	e, full, err := s.index.find(name)
	if err != nil {
		return Image{}, false, err
	}
	return e.image(), full == "" && s.verify.Allows("", e.grants, logins), nil // by the prefix of an ID
}

// Denied is the error for a pod that may not use an image by this name.
func Denied(name string) error {
	return errdefs.ErrPermissionDenied.WithMessage(
		fmt.Sprintf("image %q was pulled with a login that the pod doesn't have: add the Secret that has it to imagePullSecrets", name))
}

// grantOf returns who may use an image by a name once it has been pulled with a login.
func grantOf(name reference.Named, login registry.Login, opts PullOptions) access.Grant {
	g := access.Grant{Repository: reference.TrimNamed(name).String(), Kind: opts.Access, Since: time.Now()}
	switch {
	case login == (registry.Login{}):
		g.Kind = access.Node // the login, if any, is the node's own
	case g.Kind == "":
		g.Kind = access.Login
	}
	if g.Kind == access.Login {
		g.Hash = access.Hash(login.Username, login.Password, login.Token)
		if opts.Secret.UID != "" {
			g.Secret = &opts.Secret
		}
	}
	return g
}

// preloaded is the grant for an image that an administrator brings or names; name may be empty.
func preloaded(name string) access.Grant {
	return access.Grant{Repository: repository(name), Kind: access.Preloaded, Since: time.Now()}
}
