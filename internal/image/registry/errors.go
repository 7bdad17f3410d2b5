package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
)

const (
	// maxAttempts bounds the attempts without progress.
	maxAttempts = 5
	// firstBackoff is the pause before the second attempt. It doubles with each one.
	firstBackoff = 100 * time.Millisecond
)

// localhost begins the names of images that were built on the node, as by podman and buildah.
const localhost = "localhost"

// Retry calls try until it succeeds, fails with an error that isn't transient, or has
// failed several times in a row without progress. It pauses between attempts.
func Retry(ctx context.Context, try func() (progress bool, err error)) error {
	for attempt, pause := 1, firstBackoff; ; attempt, pause = attempt+1, pause*2 {
		progress, err := try()
		if err == nil || ctx.Err() != nil || !Transient(err) {
			return err
		}
		if progress {
			attempt, pause = 0, firstBackoff
		}
		if attempt == maxAttempts {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}

// Transient reports whether a request that failed with err may succeed when it is repeated.
func Transient(err error) bool {
	if status := (remoteerrors.ErrUnexpectedStatus{}); errors.As(err, &status) {
		return status.StatusCode >= http.StatusInternalServerError || status.StatusCode == http.StatusTooManyRequests
	}
	var network net.Error
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNREFUSED) ||
		errors.As(err, &network) && network.Timeout()
}

// BeyondEnd reports whether err means that a blob ends before the requested offset.
func BeyondEnd(err error) bool {
	status := remoteerrors.ErrUnexpectedStatus{}
	return errors.As(err, &status) && status.StatusCode == http.StatusRequestedRangeNotSatisfiable
}

// Explain turns an error of the registry into one line: what is wrong and what to do.
// It returns other errors unchanged.
func (r *Registry) Explain(err error) error {
	var (
		status    remoteerrors.ErrUnexpectedStatus
		dns       *net.DNSError
		authority x509.UnknownAuthorityError
		untrusted *tls.CertificateVerificationError
		network   *net.OpError
	)
	dir := filepath.Join(r.certsDir, r.name)
	unavailable := func(format string, args ...any) error {
		return errdefs.ErrUnavailable.WithMessage(fmt.Sprintf(format, args...))
	}
	switch {
	case errors.Is(err, docker.ErrInvalidAuthorization), errors.As(err, &status) && denies(status.StatusCode):
		return r.denial()
	case errors.As(err, &dns) && dns.IsNotFound:
		return unavailable("host %s not found: check the name of the registry", dns.Name)
	case errors.As(err, &authority), errors.As(err, &untrusted):
		return unavailable("the certificate of registry %s is not trusted (%s): put its CA certificate into %s/ca.crt", r.name, oneLine(err), dir)
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"): // net/http has no type for it
		return unavailable("registry %s speaks plain http: allow that with server = \"http://%s\" in %s/hosts.toml", r.name, r.name, dir)
	case r.name == localhost && errors.Is(err, syscall.ECONNREFUSED):
		return errdefs.ErrNotFound.WithMessage(fmt.Sprintf("it is not present, and no registry listens at localhost: load it with husk image load, or name its registry's port, as in %s:5000", localhost))
	case errors.As(err, &network) && network.Op == "dial":
		return unavailable("registry %s can't be reached: %s", r.name, oneLine(network))
	case errors.As(err, &status):
		return unavailable("registry %s returned %s: %s", r.name, status.Status, oneLine(err))
	case Transient(err):
		return unavailable("connections to registry %s keep breaking: %s", r.name, oneLine(err))
	}
	return err
}

func denies(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden
}

func (r *Registry) denial() error {
	if r.login.Password != "" {
		return errdefs.ErrPermissionDenied.WithMessage(
			fmt.Sprintf("registry %s denied access with this login: check the user name and the password, and what they may do there", r.name))
	}
	return errdefs.ErrUnauthenticated.WithMessage(
		fmt.Sprintf("registry %s denied anonymous access, or has no such image: check the name, or give a login that may pull it, as by husk login %s", r.name, r.name))
}

// missing explains which part of an unknown image name is wrong.
func (r *Registry) missing(ctx context.Context, err error) error {
	tags, found := r.tags(ctx)
	tagged, ok := r.image.(reference.Tagged)
	var message string
	switch {
	case !found:
		message = fmt.Sprintf("registry %s has no such image: check the name (%s)", r.name, oneLine(err))
	case !ok:
		message = fmt.Sprintf("%s has no image with this digest: check the digest (%s)", r.image.Name(), oneLine(err))
	default:
		message = fmt.Sprintf("%s has no tag %q: it has %s", r.image.Name(), tagged.Tag(), strings.Join(tags, ", "))
	}
	return errdefs.ErrNotFound.WithMessage(message)
}

// oneLine joins the lines of an error.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' }), "; ")
}
