package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// The waits between two probes of a server that can't be reached, before jitter, which makes them
// up to twice as long. A node finds within a second that the server is back, and 5,000 nodes make
// some 7,000 attempts to connect in a second, which cost a closed port next to nothing. The lists
// that follow share the connection of the probe that succeeded. A server that answers but refuses
// them is asked again with the reflectors' back-off.
const (
	firstProbe = 50 * time.Millisecond
	lastProbe  = 500 * time.Millisecond
	// probing is how long all requests wait for probes to succeed.
	probing = 30 * time.Second
	// probeTime is how long the server may take to answer a probe.
	probeTime = 3 * time.Second
)

// outage makes requests wait while the server can't be reached. One of them probes for all, so an
// outage costs one cheap request at a time, however many lists there are.
type outage struct {
	probing chan struct{} // held by the request that probes; of capacity 1
	// probe returns an error if the server can't be reached.
	probe func(ctx context.Context) error

	mu       sync.Mutex
	answered chan struct{} // closed once the server answers, and then replaced
}

func newOutage(probe func(ctx context.Context) error) *outage {
	return &outage{probing: make(chan struct{}, 1), probe: probe, answered: make(chan struct{})}
}

// retry makes a request until the server could be reached for it. If it can't be reached although
// it answers probes, retry returns the error, and the caller backs off.
func (o *outage) retry(ctx context.Context, request func() error) error {
	for answered := false; ; {
		err := request()
		if answered || ctx.Err() != nil || !unreachable(err) {
			return err
		}
		answered = o.wait(ctx)
	}
}

// wait returns true as soon as the server answers a probe, and false once ctx has ended or after
// a time: something between node and server may answer probes otherwise than requests.
func (o *outage) wait(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, probing)
	defer cancel()
	o.mu.Lock()
	answered := o.answered
	o.mu.Unlock()
	select {
	case <-ctx.Done():
		return false
	case <-answered:
		return true
	case o.probing <- struct{}{}:
	}
	defer func() { <-o.probing }()
	for pause := firstProbe; ; pause = min(2*pause, lastProbe) {
		select {
		case <-ctx.Done():
			return false
		case <-answered: // by the last probe of the request that probed before
			return true
		case <-time.After(pause + rand.N(pause)):
		}
		if o.probe(ctx) == nil {
			o.mu.Lock()
			close(o.answered)
			o.answered = make(chan struct{})
			o.mu.Unlock()
			return true
		}
	}
}

// probe returns an error if the server can't be reached. Every server has a version, and whoever
// can't read it has an answer too.
func (c *Client) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	err := c.rest.Get().AbsPath("/version").MaxRetries(0).Do(ctx).Error()
	if unreachable(err) {
		return err
	}
	return nil
}

// unreachable reports whether no API server has answered: there was no connection, or a proxy
// answered in its place. A certificate that is refused, by either side, is an answer: it won't be
// better soon.
func unreachable(err error) bool {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		switch status.Status().Code {
		case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			return true
		}
		return false
	}
	var verification *tls.CertificateVerificationError
	var alert tls.AlertError
	if errors.As(err, &verification) || errors.As(err, &alert) {
		return false
	}
	var transport *url.Error
	return errors.As(err, &transport) || errors.Is(err, context.DeadlineExceeded)
}
