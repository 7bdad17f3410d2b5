package image

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"

	"github.com/huskd/husk/internal/image/loginfile"
	"github.com/huskd/husk/internal/image/registry"
)

// parseRegistry returns the host of a registry that a user names, as in an image's name.
func parseRegistry(name string) (string, error) {
	host := strings.TrimPrefix(strings.TrimPrefix(name, "https://"), "http://")
	host, _, _ = strings.Cut(host, "/")
	named, err := reference.ParseNormalizedNamed(host + "/image")
	if err != nil || host == "" || !hasRegistry(host+"/image", named) {
		return "", errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("%q is not the host of a registry, such as quay.io or registry.local:5000", name))
	}
	return reference.Domain(named), nil
}

// Logins are the node's own logins at registries, for the pulls and pushes that bring none.
type Logins struct {
	certsDir string
	file     *loginfile.File
}

// Login checks a login at a registry, and keeps it.
func (l *Logins) Login(ctx context.Context, name, username, password string) (host string, err error) {
	if host, err = parseRegistry(name); err != nil {
		return "", err
	}
	if username == "" || password == "" || strings.Contains(username, ":") {
		return "", errdefs.ErrInvalidArgument.WithMessage("a login is a user name, without a colon, and a password")
	}
	named, err := parseName(host + "/image")
	if err != nil {
		return "", err
	}
	r, err := registry.New(ctx, l.certsDir, named, registry.Login{Username: username, Password: password})
	if err != nil {
		return "", err
	}
	defer r.Close()
	if err := r.Check(ctx); err != nil {
		return "", r.Explain(err)
	}
	return host, l.file.Set(host, loginfile.Login{Username: username, Password: password})
}

// Logout forgets the login at a registry.
func (l *Logins) Logout(name string) (host string, err error) {
	if host, err = parseRegistry(name); err != nil {
		return "", err
	}
	had, err := l.file.Remove(host)
	if err != nil {
		return "", err
	}
	if !had {
		hosts, _ := l.file.Hosts()
		others := "there is no login at all"
		if len(hosts) > 0 {
			others = "there are those of " + strings.Join(hosts, ", ")
		}
		return "", errdefs.ErrNotFound.WithMessage(fmt.Sprintf("no login at registry %s: %s", host, others))
	}
	return host, nil
}

// or returns the login that a pull brings or else the node's own. Without either it is empty.
func (l *Logins) or(own registry.Login, image reference.Named) (registry.Login, error) {
	if own != (registry.Login{}) {
		return own, nil
	}
	kept, _, err := l.file.Get(reference.Domain(image))
	return registry.Login{Username: kept.Username, Password: kept.Password}, err
}
