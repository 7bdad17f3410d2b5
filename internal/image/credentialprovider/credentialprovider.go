// Package credentialprovider asks programs of the node for registry logins: the kubelet's exec
// plugins for image credentials, which speak credentialprovider.kubelet.k8s.io.
package credentialprovider

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletv1 "k8s.io/kubelet/config/v1"
	credentialproviderv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"github.com/huskd/husk/internal/manifest/criconfig"
)

const (
	// runTime is how long a provider may run, as with the kubelet.
	runTime = time.Minute
	// killTime is how long the pipes of a killed provider stay open for its children.
	killTime = time.Second
	// maxResponse bounds a response in bytes.
	maxResponse  = 1 << 20
	maxComplaint = 500
)

// Config says which providers there are.
type Config struct {
	// File is a CredentialProviderConfig, or a directory of them. Without it there are no providers.
	File string
	// Dir has the providers' programs.
	Dir string
	Log *slog.Logger
}

// Providers are the programs that know logins. The nil Providers know none.
type Providers struct {
	list []*provider
	log  *slog.Logger
}

// provider is one program.
type provider struct {
	kubeletv1.CredentialProvider
	path string

	// Invariant: mu guards answers. It is held while the program runs, so that pulls of many pods ask
	// once.
	mu      sync.Mutex
	answers map[string]answer // by the key that the program chose: see keysOf
}

// answer is what a provider has answered.
type answer struct {
	auth    map[string]credentialproviderv1.AuthConfig
	expires time.Time
}

// Open reads the configuration and checks that the programs exist.
func Open(cfg Config) (*Providers, error) {
	if cfg.File == "" {
		return nil, nil
	}
	configured, err := readConfig(cfg.File)
	if err != nil {
		return nil, fmt.Errorf("credential providers: %w", err)
	}
	out := &Providers{log: cfg.Log}
	for _, c := range configured {
		path, err := exec.LookPath(filepath.Join(cfg.Dir, c.Name))
		if err != nil {
			return nil, fmt.Errorf("credential provider %s: %w", c.Name, err)
		}
		out.list = append(out.list, &provider{CredentialProvider: c, path: path, answers: map[string]answer{}})
	}
	return out, nil
}

// Logins returns the logins for an image, those for the longest host and path first. A provider
// that fails is logged and has none.
func (p *Providers) Logins(ctx context.Context, image string) []criconfig.Login {
	if p == nil {
		return nil
	}
	named, err := reference.ParseDockerRef(image)
	if err != nil {
		return nil // the pull says so
	}
	repository := named.Name()
	found := map[string][]criconfig.Login{}
	for _, provider := range p.list {
		if !slices.ContainsFunc(provider.MatchImages, func(pattern string) bool { return matches(pattern, repository) }) {
			continue
		}
		auth, err := provider.ask(ctx, repository)
		if err != nil {
			p.log.Error("credential provider: no login", "provider", provider.Name, "image", repository, "error", err)
		}
		for at, login := range auth {
			at = strings.TrimPrefix(strings.TrimPrefix(at, "https://"), "http://")
			if matches(strings.TrimSuffix(at, "/"), repository) {
				found[at] = append(found[at], criconfig.Login{Username: login.Username, Password: login.Password})
			}
		}
	}
	var out []criconfig.Login
	for _, at := range slices.Backward(slices.Sorted(maps.Keys(found))) {
		out = append(out, found[at]...)
	}
	return out
}

// keysOf returns the keys under which an answer for a repository may be found: the repository's
// own, its registry's and the one of all images.
func keysOf(repository string) map[credentialproviderv1.PluginCacheKeyType]string {
	registry, _, _ := strings.Cut(repository, "/")
	return map[credentialproviderv1.PluginCacheKeyType]string{
		credentialproviderv1.ImagePluginCacheKeyType:    "image " + repository,
		credentialproviderv1.RegistryPluginCacheKeyType: "registry " + registry,
		credentialproviderv1.GlobalPluginCacheKeyType:   "global",
	}
}

// ask returns the provider's logins by host and path.
func (p *provider) ask(ctx context.Context, repository string) (map[string]credentialproviderv1.AuthConfig, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.answers, func(_ string, a answer) bool { return time.Now().After(a.expires) })
	keys := keysOf(repository)
	for _, key := range keys {
		if a, ok := p.answers[key]; ok {
			return a.auth, nil
		}
	}
	response, err := p.run(ctx, repository)
	if err != nil {
		return nil, err
	}
	key, ok := keys[response.CacheKeyType]
	if !ok {
		return nil, fmt.Errorf("cacheKeyType %.40q is not Image, Registry or Global", response.CacheKeyType)
	}
	keep := p.DefaultCacheDuration.Duration
	if response.CacheDuration != nil {
		keep = response.CacheDuration.Duration
	}
	if keep > 0 {
		p.answers[key] = answer{response.Auth, time.Now().Add(keep)}
	}
	return response.Auth, nil
}

// run runs the program with a request on its standard input. Errors don't contain its output, which
// may be secret.
func (p *provider) run(ctx context.Context, repository string) (*credentialproviderv1.CredentialProviderResponse, error) {
	request, err := json.Marshal(credentialproviderv1.CredentialProviderRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: p.APIVersion, Kind: "CredentialProviderRequest"}, Image: repository,
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, runTime)
	defer cancel()
	var stdout, stderr bounded
	cmd := exec.CommandContext(ctx, p.path, p.Args...)
	cmd.Env = os.Environ()
	for _, e := range p.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(request), &stdout, &stderr
	cmd.WaitDelay = killTime
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("%w: %.*q", err, maxComplaint, strings.TrimSpace(stderr.String()))
	}
	response := &credentialproviderv1.CredentialProviderResponse{}
	if err := json.Unmarshal(stdout.Bytes(), response); err != nil {
		return nil, errors.New("its output is not a CredentialProviderResponse in JSON")
	}
	if response.Kind != "CredentialProviderResponse" || response.APIVersion != p.APIVersion {
		return nil, fmt.Errorf("it answered with a %.40q of %.60q instead of a CredentialProviderResponse of %s", response.Kind, response.APIVersion, p.APIVersion)
	}
	return response, nil
}

// bounded is a buffer that refuses more than maxResponse.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(data []byte) (int, error) {
	if b.Len()+len(data) > maxResponse {
		return 0, io.ErrShortWrite
	}
	return b.Buffer.Write(data)
}
