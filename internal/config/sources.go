package config

import (
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
)

// Sources says where pods are declared.
type Sources struct {
	Manifests  string   `key:"manifests" help:"directory whose manifests, the .yaml, .yml and .json files, huskd keeps running; empty for none"`
	Web        string   `key:"manifest-url" help:"http:// or https:// URL of a manifest whose pods huskd keeps running; empty for none. SSL_CERT_FILE in huskd's environment replaces the system's CA certificates"`
	WebHeader  []string `key:"manifest-url-header" help:"HTTP headers of the requests for it, NAME: VALUE"`
	WebSeconds int      `key:"manifest-url-interval" help:"seconds between requests for it"`
	Bootstrap  string   `key:"bootstrap-kubeconfig" help:"kubeconfig, often with a bootstrap token, by which huskd requests a client certificate if the file of kubeconfig doesn't exist or its certificate has expired. huskd then writes that file, and renews the certificate; empty for none"`
	Kubeconfig string   `key:"kubeconfig" help:"kubeconfig of the cluster that this machine joins as a node; empty for none"`
}

func (c *Sources) checkSources(bad func(key, format string, args ...any)) {
	if u, err := url.Parse(c.Web); c.Web != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		bad("manifest-url", "must be of the form https://host/path")
	}
	if _, err := c.Header(); err != nil {
		bad("manifest-url-header", "%w", err)
	}
	if c.WebSeconds < 1 {
		bad("manifest-url-interval", "%d: must be at least 1", c.WebSeconds)
	}
	if c.Bootstrap != "" && (!filepath.IsAbs(c.Bootstrap) || c.Kubeconfig == "") {
		bad("bootstrap-kubeconfig", "%q must be an absolute path, and kubeconfig the file to be written", c.Bootstrap)
	}
	if c.Kubeconfig != "" && !filepath.IsAbs(c.Kubeconfig) {
		bad("kubeconfig", "%q is not an absolute path", c.Kubeconfig)
	}
}

// Header returns the HTTP headers of requests for the manifest. Errors don't contain them, since
// they may be secret.
func (c *Sources) Header() (http.Header, error) {
	out := http.Header{}
	for i, line := range c.WebHeader {
		name, value, ok := strings.Cut(line, ":")
		if !ok || !headerForm.MatchString(name) || strings.ContainsAny(value, "\r\n\x00") {
			return nil, fmt.Errorf("header %d is not of the form NAME: VALUE", i+1)
		}
		out.Add(name, strings.TrimSpace(value))
	}
	return out, nil
}

var headerForm = regexp.MustCompile(`^[A-Za-z0-9-]+$`)
