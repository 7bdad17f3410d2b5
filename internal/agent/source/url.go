package source

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/huskd/husk/internal/manifest"
)

// URL is a manifest on a web server, which is fetched periodically. Any answer other than a valid
// manifest leaves the pods unchanged.
type URL struct {
	URL string
	// Header is sent with each request. It may contain credentials.
	Header   http.Header
	Node     string // name of this node
	Interval time.Duration
	Log      *slog.Logger
	// Policies accepts network policies. Set it if they are enforced.
	Policies bool
	// Services accepts Services. Set it if they are served.
	Services bool
	// Note is called when the manifest is read and has an object without effect.
	Note func(url string, unused manifest.Unused)
	// Deliver is called with the complete set once it is known and after each change.
	Deliver func(Set)

	client http.Client
	// etag and modified are the validators of the last manifest, sum is its hash.
	etag, modified string
	sum            [sha256.Size]byte
	lastError      string // the last error that was logged
}

// requestTimeout is the time that the server has to answer. It is kubelet's.
const requestTimeout = 10 * time.Second

// Run fetches the manifest periodically until ctx ends.
func (u *URL) Run(ctx context.Context) error {
	u.client = http.Client{Timeout: requestTimeout, CheckRedirect: checkRedirect, Transport: http.DefaultTransport.(*http.Transport).Clone()}
	defer u.client.CloseIdleConnections()
	tick := time.NewTicker(u.Interval)
	defer tick.Stop()
	for {
		set, err := u.fetch(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			u.logOnce(err)
		case set != nil:
			u.Deliver(*set)
		}
		if err == nil {
			u.lastError = ""
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

const maxRedirects = 10

// checkRedirect refuses redirects from https to http.
func checkRedirect(r *http.Request, via []*http.Request) error {
	switch {
	case via[0].URL.Scheme == "https" && r.URL.Scheme != "https":
		return fmt.Errorf("it redirects to %s, without TLS", redacted(r.URL.String()))
	case len(via) >= maxRedirects:
		return fmt.Errorf("more than %d redirects", maxRedirects)
	}
	return nil
}

// redacted returns a URL without its password.
func redacted(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return text
	}
	return u.Redacted()
}

// fetch returns the declared set, or nil if it hasn't changed.
func (u *URL) fetch(ctx context.Context) (*Set, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.URL, nil)
	if err != nil {
		return nil, err
	}
	for name, values := range u.Header {
		req.Header[name] = values
		if name == "Host" {
			req.Host = values[0]
		}
	}
	if u.etag != "" {
		req.Header.Set("If-None-Match", u.etag)
	}
	if u.modified != "" {
		req.Header.Set("If-Modified-Since", u.modified)
	}
	answer, err := u.client.Do(req)
	if err != nil {
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err
		}
		return nil, err
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusNotModified:
		return nil, nil
	case http.StatusOK:
	default:
		return nil, fmt.Errorf("it answers %s", answer.Status)
	}
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxFile+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > maxFile:
		return nil, fmt.Errorf("its answer is larger than %d MiB", maxFile>>20)
	}
	sum := sha256.Sum256(data)
	if sum == u.sum {
		return nil, nil
	}
	at := redacted(u.URL)
	f, err := manifest.Parse(data, manifest.Origin{File: at, Node: u.Node, Source: string(Web) + at, Policies: u.Policies, Services: u.Services})
	if err != nil {
		return nil, err
	}
	u.sum, u.etag, u.modified = sum, answer.Header.Get("ETag"), answer.Header.Get("Last-Modified")
	set := NewSet(Web)
	set.Add(&f)
	for _, unused := range f.Unused {
		u.Note(at, unused)
	}
	for _, s := range f.Services {
		set.Services = append(set.Services, Service{s, at})
	}
	for _, s := range f.Slices {
		set.Slices = append(set.Slices, Slice{s, at})
	}
	for _, w := range f.Workloads {
		set.Workloads = append(set.Workloads, Workload{w, at})
	}
	for i := range f.Pods {
		set.Pods = append(set.Pods, Pod{Pod: &f.Pods[i], Location: at})
	}
	return &set, nil
}

// logOnce logs an error, unless it is the same as the last one.
func (u *URL) logOnce(err error) {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	if text == u.lastError {
		return
	}
	u.lastError = text
	u.Log.Error("manifests: the pods from the URL are kept: "+text, "url", redacted(u.URL))
}
