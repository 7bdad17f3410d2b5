package credentialprovider

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	kubeletv1 "k8s.io/kubelet/config/v1"
	credentialproviderv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	"sigs.k8s.io/yaml"
)

const configKind = "CredentialProviderConfig"

var (
	// configVersions are the versions of the file. Their fields are the same, but for those of
	// service account tokens.
	configVersions = []string{"kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1"}
	// protocols are the versions of requests and responses. They differ in the same way.
	protocols = []string{credentialproviderv1.SchemeGroupVersion.String(), credentialproviderv1.GroupName + "/v1beta1", credentialproviderv1.GroupName + "/v1alpha1"}
)

// readConfig reads a file with the providers, or a directory of such files, whose names end in
// .json, .yaml or .yml.
func readConfig(location string) ([]kubeletv1.CredentialProvider, error) {
	files, err := filesOf(location)
	if err != nil {
		return nil, err
	}
	var out []kubeletv1.CredentialProvider
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		providers, err := parseConfig(content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, p := range providers {
			if slices.ContainsFunc(out, func(o kubeletv1.CredentialProvider) bool { return o.Name == p.Name }) {
				return nil, fmt.Errorf("%s: there are two providers %q", file, p.Name)
			}
			out = append(out, p)
		}
	}
	return out, nil
}

func filesOf(location string) ([]string, error) {
	info, err := os.Stat(location)
	if err != nil || !info.IsDir() {
		return []string{location}, err
	}
	entries, err := os.ReadDir(location)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if slices.Contains([]string{".json", ".yaml", ".yml"}, filepath.Ext(e.Name())) {
			out = append(out, filepath.Join(location, e.Name()))
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no .json, .yaml or .yml files", location)
	}
	return out, nil
}

// parseConfig returns the providers of one file, or all of its mistakes.
func parseConfig(content []byte) ([]kubeletv1.CredentialProvider, error) {
	var config kubeletv1.CredentialProviderConfig
	if err := yaml.UnmarshalStrict(content, &config); err != nil {
		return nil, errors.New(strings.Join(strings.Fields(err.Error()), " "))
	}
	if config.Kind != configKind || !slices.Contains(configVersions, config.APIVersion) {
		return nil, fmt.Errorf("it is a %s of %s: write a %s of %s", config.Kind, config.APIVersion, configKind, configVersions[0])
	}
	if len(config.Providers) == 0 {
		return nil, errors.New("providers: name at least one")
	}
	var errs []error
	for i, p := range config.Providers {
		for _, problem := range problems(p) {
			errs = append(errs, fmt.Errorf("providers[%d] %q: %s", i, p.Name, problem))
		}
	}
	return config.Providers, errors.Join(errs...)
}

func problems(p kubeletv1.CredentialProvider) (out []string) {
	bad := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if p.Name == "" || p.Name == "." || p.Name == ".." || strings.ContainsAny(p.Name, "/ ") {
		bad("name: must be the name of a program in the directory of providers")
	}
	if !slices.Contains(protocols, p.APIVersion) {
		bad("apiVersion: %q is not one of %s", p.APIVersion, strings.Join(protocols, ", "))
	}
	if len(p.MatchImages) == 0 {
		bad("matchImages: name at least one")
	}
	for _, pattern := range p.MatchImages {
		if _, err := path.Match(pattern, ""); err != nil || strings.Contains(pattern, "://") {
			bad("matchImages: %q is not of the form HOST/PATH, such as *.registry.example.com/team", pattern)
		}
	}
	switch {
	case p.DefaultCacheDuration == nil:
		bad("defaultCacheDuration: is missing")
	case p.DefaultCacheDuration.Duration < 0:
		bad("defaultCacheDuration: %s is negative", p.DefaultCacheDuration.Duration)
	}
	if p.TokenAttributes != nil {
		bad("tokenAttributes: huskd doesn't pass service account tokens to providers: remove it")
	}
	return out
}

// matches reports whether an image's repository is below a host and path, as the kubelet decides
// it. Each label of the host may be a pattern such as *, which never spans labels. The port is the
// same, and the path begins with the pattern's.
func matches(pattern, repository string) bool {
	wantHost, below, _ := strings.Cut(pattern, "/")
	imageHost, name, _ := strings.Cut(repository, "/")
	wantHost, wantPort := splitPort(wantHost)
	host, port := splitPort(imageHost)
	wants, has := strings.Split(wantHost, "."), strings.Split(host, ".")
	if len(wants) != len(has) || wantPort != port || !strings.HasPrefix(name, below) {
		return false
	}
	for i := range wants {
		if ok, err := path.Match(wants[i], has[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

// splitPort splits a host's name or address from its port, if that has one. Brackets are removed
// from an IPv6 address, and stay in a pattern.
func splitPort(at string) (host, port string) {
	host, port, err := net.SplitHostPort(at)
	if err != nil {
		host, port = at, ""
	}
	if inner, found := strings.CutPrefix(host, "["); found && strings.Contains(inner, ":") {
		host = strings.TrimSuffix(inner, "]")
	}
	return host, port
}
