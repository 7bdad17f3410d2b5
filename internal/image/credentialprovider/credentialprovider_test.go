package credentialprovider

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	credentialproviderv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"github.com/huskd/husk/internal/manifest/criconfig"
)

// script is the environment variable that makes the test binary a provider. Its value is a
// directory with the provider's answer, in which it leaves the requests.
const script = "HUSK_TEST_CREDENTIAL_PROVIDER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(script); dir != "" {
		if err := provide(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// provide is a credential provider.
func provide(dir string) error {
	request, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(dir, "requests"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	var got credentialproviderv1.CredentialProviderRequest
	if err := json.Unmarshal(request, &got); err != nil {
		return err
	}
	fmt.Fprintln(log, got.APIVersion, got.Kind, got.Image, strings.Join(os.Args[1:], " "))
	answer, err := os.ReadFile(filepath.Join(dir, "answer"))
	if err != nil {
		return err
	}
	how, _ := os.ReadFile(filepath.Join(dir, "behaviour"))
	if err := misbehave(dir, string(how)); err != nil {
		return err
	}
	_, err = os.Stdout.Write(answer)
	return err
}

// harness is one provider in a directory of its own.
type harness struct {
	*Providers
	t   *testing.T
	dir string
}

func newHarness(t *testing.T, patterns, answer string) *harness {
	t.Helper()
	h := &harness{t: t, dir: t.TempDir()}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(h.dir, "vault")); err != nil {
		t.Fatal(err)
	}
	h.answer(answer)
	config := fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: vault
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: [%s]
  defaultCacheDuration: 1h
  args: [--team, web]
  env: [{name: %s, value: %s}]
`, patterns, script, h.dir)
	file := filepath.Join(h.dir, "config.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if h.Providers, err = Open(Config{File: file, Dir: h.dir, Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	return h
}

// answer sets what the provider answers: the fields of a response.
func (h *harness) answer(fields string) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.dir, "answer"), []byte(`{"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderResponse", `+fields+`}`), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// requests returns the requests that the provider got.
func (h *harness) requests() (out []string) {
	f, err := os.Open(filepath.Join(h.dir, "requests"))
	if err != nil {
		return nil
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		out = append(out, s.Text())
	}
	return out
}

func TestLogins(t *testing.T) {
	t.Parallel()
	h := newHarness(t, `"*.example.com", docker.io`, `"cacheKeyType": "Image", "auth": {
		"reg.example.com": {"username": "u", "password": "wide"},
		"https://reg.example.com/team": {"username": "u", "password": "narrow"},
		"other.example.com": {"username": "u", "password": "other"}}`)
	want := []criconfig.Login{{Username: "u", Password: "narrow"}, {Username: "u", Password: "wide"}}
	for range 3 {
		got := h.Logins(t.Context(), "reg.example.com/team/web:1.0")
		slices.SortFunc(got, func(a, b criconfig.Login) int { return strings.Compare(a.Password, b.Password) })
		if !slices.Equal(got, want) {
			t.Errorf("%v", got)
		}
	}
	if got := h.Logins(t.Context(), "reg.example.org/team/web:1.0"); len(got) > 0 {
		t.Errorf("an image that doesn't match: %v", got)
	}
	h.Logins(t.Context(), "busybox")
	wantRequests := []string{
		"credentialprovider.kubelet.k8s.io/v1 CredentialProviderRequest reg.example.com/team/web --team web",
		"credentialprovider.kubelet.k8s.io/v1 CredentialProviderRequest docker.io/library/busybox --team web",
	}
	if got := h.requests(); !slices.Equal(got, wantRequests) {
		t.Errorf("the provider was asked %q", got)
	}
	var none *Providers
	if got := none.Logins(t.Context(), "reg.example.com/web"); got != nil {
		t.Errorf("%v", got)
	}
}

// TestCache: an answer is kept for the images and the time that it names, and pulls at the same
// time ask once.
func TestCache(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		answer string
		asked  int
	}{
		{`"cacheKeyType": "Image"`, 3},
		{`"cacheKeyType": "Registry"`, 2},
		{`"cacheKeyType": "Global"`, 1},
		{`"cacheKeyType": "Global", "cacheDuration": "0s"`, 4},
		{`"cacheKeyType": "Global", "cacheDuration": "-1h"`, 4},
		{`"cacheKeyType": "Global", "cacheDuration": "2000000h"`, 1},
	} {
		h := newHarness(t, `"*.example.com"`, c.answer)
		h.behave("waits")
		for _, image := range []string{"a.example.com/x:1", "a.example.com/y", "b.example.com/x", "a.example.com/x:2"} {
			var group sync.WaitGroup
			for range 3 {
				group.Go(func() { h.Logins(t.Context(), image) })
			}
			for repository, _, _ := strings.Cut(image, ":"); h.waiters(repository) < 3 && !h.kept(repository); {
				time.Sleep(time.Millisecond)
			}
			h.proceed()
			group.Wait()
		}
		if got := len(h.requests()); got != c.asked {
			t.Errorf("%s: the provider ran %d times, want %d", c.answer, got, c.asked)
		}
	}
	h := newHarness(t, `"*.example.com"`, `"cacheKeyType": "Global", "cacheDuration": "1ms"`)
	for end := time.Now().Add(time.Minute); len(h.requests()) < 3 && time.Now().Before(end); {
		h.Logins(t.Context(), "a.example.com/x")
	}
	if len(h.requests()) < 3 {
		t.Error("the answer doesn't expire")
	}
}

func TestMatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, repository string
		want                bool
	}{
		{"reg.example.com", "reg.example.com/web", true},
		{"*.example.com", "reg.example.com/web", true},
		{"*.example.com", "a.reg.example.com/web", false},
		{"*.*.example.com", "a.reg.example.com/web", true},
		{"reg*.example.com", "reg7.example.com/web", true},
		{"reg.example.com/team", "reg.example.com/team/web", true},
		{"reg.example.com/team", "reg.example.com/other/web", false},
		{"reg.example.com:5000", "reg.example.com/web", false},
		{"reg.example.com:5000", "reg.example.com:5000/web", true},
		{"*:5000", "localhost:5000/web", true},
		{"*", "localhost:5000/web", false},
		{"reg.example.com/team", "reg.example.com/team-b/web", true}, // as below a kubelet
		{"[fd00::1]:5000", "[fd00::1]:5000/web", true},
		{"[fd00::1]", "[fd00::1]/web", true},
		{"[fd00::1]:5000", "[fd00::2]:5000/web", false},
		{"[fd00::1]:5000", "f:5000/web", false},
		{"*.example.com", "evil.com/x.example.com", false},
		{"*.example.com", "evil.com/reg.example.com/web", false},
		{"*.example.com", "reg.example.com.evil/web", false},
		{"*.example.com", "example.com/web", false},
		{"*.example.com", "reg.example.com:5000/web", false},
		{"*.example.com", "regxexample.com/web", false},
		{"reg.example.com", "reg.example.com.evil.com/web", false},
		{"reg.example.com", "evil.com/reg.example.com", false},
		{"*.com:5000", "evil.com:5001/x:5000", false},
		{"[", "reg.example.com/web", false},
	} {
		if got := matches(c.pattern, c.repository); got != c.want {
			t.Errorf("%s, %s: %t", c.pattern, c.repository, got)
		}
	}
}

func TestBadConfig(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n"
	provider := func(fields string) string { return head + "providers: [{" + fields + "}]\n" }
	const valid = "name: vault, apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: [a.b], defaultCacheDuration: 1m"
	for _, c := range []struct{ config, want string }{
		{"a: b", "unknown field"},
		{"{}", "write a CredentialProviderConfig"},
		{head, "providers: name at least one"},
		{provider("name: a/b"), "name: must be the name of a program"},
		{provider("name: a"), `apiVersion: "" is not one of`},
		{provider("name: a"), "matchImages: name at least one"},
		{provider("name: a"), "defaultCacheDuration: is missing"},
		{provider("name: a, matchImages: ['[']"), `matchImages: "[" is not`},
		{provider(valid + ", tokenAttributes: {serviceAccountTokenAudience: x, cacheType: Token, requireServiceAccount: true}"), "tokenAttributes: huskd doesn't pass"},
		{provider(valid), "credential provider vault: "},
	} {
		file := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(file, []byte(c.config), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(Config{File: file, Dir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.config, err, c.want)
		}
	}
	dir := t.TempDir()
	if _, err := Open(Config{File: dir}); err == nil || !strings.Contains(err.Error(), "has no .json") {
		t.Errorf("an empty directory: %v", err)
	}
	for _, name := range []string{"a.yaml", "b.yml"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(provider(valid)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(Config{File: dir}); err == nil || !strings.Contains(err.Error(), `there are two providers "vault"`) {
		t.Errorf("two files with one name: %v", err)
	}
}
