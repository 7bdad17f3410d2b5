package config

import (
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
)

// Sources are where pods are declared.
type Sources struct {
	Manifests  string   `key:"manifests" help:"directory of pod manifests to keep running; empty for none"`
	Web        string   `key:"manifest-url" help:"URL of a manifest whose pods to keep running, http:// or https://; empty for none. SSL_CERT_FILE in huskd's environment names the authorities that it trusts instead of the system's"`
	WebHeader  []string `key:"manifest-url-header" help:"headers of each request to it, NAME: VALUE"`
	WebSeconds int      `key:"manifest-url-interval" help:"how often it is asked, in seconds"`
	Kubeconfig string   `key:"kubeconfig" help:"file that says which Kubernetes API server this machine is a node of, and how to reach it; empty for none"`
}

func (c *Sources) checkSources(bad func(key, format string, args ...any)) {
	if u, err := url.Parse(c.Web); c.Web != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		bad("manifest-url", "it is not of the form https://host/path")
	}
	if _, err := c.Header(); err != nil {
		bad("manifest-url-header", "%w", err)
	}
	if c.WebSeconds < 1 {
		bad("manifest-url-interval", "%d: at least 1", c.WebSeconds)
	}
	if c.Kubeconfig != "" && !filepath.IsAbs(c.Kubeconfig) {
		bad("kubeconfig", "%q is not an absolute path", c.Kubeconfig)
	}
}

// Header returns the headers of requests for the manifest. They may be secret,
// and are not in an error.
func (c *Sources) Header() (http.Header, error) {
	out := http.Header{}
	for i, line := range c.WebHeader {
		name, value, ok := strings.Cut(line, ":")
		if !ok || !headerForm.MatchString(name) || strings.ContainsAny(value, "\r\n\x00") {
			return nil, fmt.Errorf("number %d is not of the form NAME: VALUE", i+1)
		}
		out.Add(name, strings.TrimSpace(value))
	}
	return out, nil
}

var headerForm = regexp.MustCompile(`^[A-Za-z0-9-]+$`)
