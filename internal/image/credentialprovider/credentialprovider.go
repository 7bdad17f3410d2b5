// Package credentialprovider asks programs of the node for registry logins: the kubelet's exec
// plugins for image credentials, which speak credentialprovider.kubelet.k8s.io.
package credentialprovider

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	kubeletv1 "k8s.io/kubelet/config/v1"
	credentialproviderv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"github.com/huskd/husk/internal/manifest/criconfig"
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
	path  string
	limit time.Duration // how long it may run

	// Invariant: mu guards answers and calls.
	mu      sync.Mutex
	answers map[string]answer // by the key that the program chose: see keysOf
	calls   map[string]*call  // those running, by repository
}

// call is a run of the program, for all pulls from a repository at the same time. It is killed when
// nobody waits for it anymore.
type call struct {
	cancel  context.CancelFunc
	waiters int
	done    chan struct{} // closed when auth and err are set
	auth    map[string]credentialproviderv1.AuthConfig
	err     error
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
		out.list = append(out.list, &provider{
			CredentialProvider: c, path: path, limit: runTime, answers: map[string]answer{}, calls: map[string]*call{},
		})
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

// key is where an answer is kept, if the program chose that kind.
type key struct {
	kind credentialproviderv1.PluginCacheKeyType
	name string
}

// keysOf returns the keys under which an answer for a repository may be found, in the kubelet's
// order: the repository's own, its registry's and the one of all images.
func keysOf(repository string) []key {
	registry, _, _ := strings.Cut(repository, "/")
	return []key{
		{credentialproviderv1.ImagePluginCacheKeyType, "image " + repository},
		{credentialproviderv1.RegistryPluginCacheKeyType, "registry " + registry},
		{credentialproviderv1.GlobalPluginCacheKeyType, "global"},
	}
}

// ask returns the provider's logins by host and path.
func (p *provider) ask(ctx context.Context, repository string) (map[string]credentialproviderv1.AuthConfig, error) {
	p.mu.Lock()
	if auth, ok := p.known(repository); ok {
		p.mu.Unlock()
		return auth, nil
	}
	c := p.calls[repository]
	if c == nil {
		c = &call{done: make(chan struct{})}
		var run context.Context
		run, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
		p.calls[repository] = c
		go p.answer(run, repository, c)
	}
	c.waiters++
	p.mu.Unlock()

	select {
	case <-c.done:
		return c.auth, c.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	c.waiters--
	last := c.waiters == 0
	if last {
		c.cancel()
		p.forget(repository, c) // nobody may join a cancelled call
	}
	p.mu.Unlock()
	if last {
		<-c.done // the program is dead, and doesn't outlive huskd
	}
	return nil, context.Cause(ctx)
}

// known returns an answer that is kept for a repository. The caller holds mu.
func (p *provider) known(repository string) (map[string]credentialproviderv1.AuthConfig, bool) {
	maps.DeleteFunc(p.answers, func(_ string, a answer) bool { return time.Now().After(a.expires) })
	for _, key := range keysOf(repository) {
		if a, ok := p.answers[key.name]; ok {
			return a.auth, true
		}
	}
	return nil, false
}

// forget removes a call unless another has taken its place. The caller holds mu.
func (p *provider) forget(repository string, c *call) {
	if p.calls[repository] == c {
		delete(p.calls, repository)
	}
}

// answer runs the program for a call and keeps its answer for as long as that says.
func (p *provider) answer(ctx context.Context, repository string, c *call) {
	defer c.cancel()
	response, err := p.run(ctx, repository)
	p.mu.Lock()
	defer p.mu.Unlock()
	defer close(c.done)
	p.forget(repository, c)
	if c.err = err; err != nil {
		return
	}
	keys := keysOf(repository)
	at := slices.IndexFunc(keys, func(k key) bool { return k.kind == response.CacheKeyType })
	if at < 0 {
		c.err = fmt.Errorf("cacheKeyType %.40q is not Image, Registry or Global", response.CacheKeyType)
		return
	}
	c.auth = response.Auth
	keep := p.DefaultCacheDuration.Duration
	if response.CacheDuration != nil {
		keep = response.CacheDuration.Duration
	}
	if keep > 0 {
		p.answers[keys[at].name] = answer{response.Auth, time.Now().Add(keep)}
	}
}
