package credentialprovider

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/huskd/husk/internal/manifest/criconfig"
)

// misbehave is how a provider behaves before it answers.
func misbehave(dir, how string) error {
	switch how {
	case "waits": // until the test lets it go on, once
		for os.Remove(filepath.Join(dir, "proceed")) != nil {
			time.Sleep(time.Millisecond)
		}
	case "leaves a child", "hangs":
		child := exec.Command("sleep", "600")
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		if err := child.Start(); err != nil {
			return err
		}
		if err := record(dir, child.Process.Pid, os.Getpid()); err != nil || how != "hangs" {
			return err
		}
		time.Sleep(time.Hour)
	case "endless stdout":
		return endless(dir, os.Stdout)
	case "endless stderr":
		return endless(dir, os.Stderr)
	}
	return nil
}

// endless writes for ever, also when nobody reads.
func endless(dir string, to *os.File) error {
	if err := record(dir, os.Getpid()); err != nil {
		return err
	}
	signal.Ignore(syscall.SIGPIPE)
	for chunk := bytes.Repeat([]byte("x"), 1<<16); ; {
		if _, err := to.Write(chunk); err != nil {
			time.Sleep(time.Millisecond)
		}
	}
}

// record leaves the IDs of processes for the test.
func record(dir string, pids ...int) error {
	path := filepath.Join(dir, "pids")
	if err := os.WriteFile(path+".new", []byte(fmt.Sprintln(pids)), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func (h *harness) behave(how string) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.dir, "behaviour"), []byte(how), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// proceed lets a provider go on that waits.
func (h *harness) proceed() {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.dir, "proceed"), nil, 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// waiters returns how many pulls wait for the answer for a repository.
func (h *harness) waiters(repository string) int {
	p := h.list[0]
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.calls[repository]; c != nil {
		return c.waiters
	}
	return 0
}

// kept reports whether the answer for a repository is kept.
func (h *harness) kept(repository string) bool {
	p := h.list[0]
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.known(repository)
	return ok
}

// wantGone checks that the processes that the provider has recorded are dead.
func (h *harness) wantGone() {
	h.t.Helper()
	for _, pid := range h.pids() {
		for end := time.Now().Add(30 * time.Second); alive(pid); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				h.t.Fatalf("process %d lives", pid)
			}
		}
	}
}

// pids waits for the processes that the provider has recorded.
func (h *harness) pids() (out []int) {
	h.t.Helper()
	end := time.Now().Add(30 * time.Second)
	for {
		list, err := os.ReadFile(filepath.Join(h.dir, "pids"))
		if err == nil {
			for _, field := range strings.Fields(strings.Trim(string(list), "[]\n")) {
				var pid int
				if _, err := fmt.Sscan(field, &pid); err != nil {
					h.t.Fatal(err)
				}
				out = append(out, pid)
			}
			return out
		}
		if time.Now().After(end) {
			h.t.Fatal("the provider didn't run")
		}
		time.Sleep(time.Millisecond)
	}
}

// alive reports whether a process runs. A zombie, which init hasn't reaped yet, doesn't.
func alive(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, fields, _ := strings.Cut(string(status), ") ")
	return !strings.HasPrefix(fields, "Z")
}

// TestHostileProvider checks that a provider which hangs, floods or leaves processes behind is
// killed with all of them.
func TestHostileProvider(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		how, err string
		limit    time.Duration
	}{
		{"hangs", "it didn't answer for 1s and was killed", time.Second},
		{"endless stdout", "it wrote more than 1048576 bytes and was killed", time.Minute},
		{"endless stderr", "it wrote more than 1048576 bytes and was killed", time.Minute},
		{"leaves a child", "", time.Minute},
	} {
		t.Run(c.how, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t, `"*.example.com"`, `"cacheKeyType": "Image", "auth": {"*.example.com": {"username": "u", "password": "p"}}`)
			h.behave(c.how)
			h.list[0].limit = c.limit
			auth, err := h.list[0].ask(t.Context(), "a.example.com/x")
			if c.err == "" {
				if err != nil || len(auth) != 1 {
					t.Errorf("%v, %v", auth, err)
				}
			} else if err == nil || !strings.Contains(err.Error(), c.err) || len(err.Error()) > 2000 {
				t.Errorf("%.2000v, want %q", err, c.err)
			}
			h.wantGone()
		})
	}
}

// TestHangingProviderHoldsUpNoOthers checks that a pull for which a provider hangs, as one may that
// asks the registry, keeps no other pull waiting, and that it can be given up.
func TestHangingProviderHoldsUpNoOthers(t *testing.T) {
	t.Parallel()
	h := newHarness(t, `"*.example.com"`, `"cacheKeyType": "Image", "auth": {"*.example.com": {"username": "u", "password": "p"}}`)
	h.behave("hangs")
	ctx, cancel := context.WithCancel(t.Context())
	const pulls = 2
	ended := make(chan error, pulls)
	for range pulls {
		go func() {
			_, err := h.list[0].ask(ctx, "evil.example.com/x")
			ended <- err
		}()
	}
	h.pids()
	h.behave("")
	if got := h.Logins(t.Context(), "good.example.com/x"); len(got) != 1 {
		t.Errorf("another pull: %v", got)
	}
	cancel()
	for range pulls {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	}
	h.wantGone()
	if got := h.Logins(t.Context(), "evil.example.com/x"); len(got) != 1 {
		t.Errorf("a later pull: %v", got)
	}
}

// TestBadAnswers checks that an answer which isn't one gives no login and isn't kept.
func TestBadAnswers(t *testing.T) {
	t.Parallel()
	const auth = `, "cacheKeyType": "Global", "auth": {"a.example.com": {"username": "u", "password": "secret"}}`
	for _, c := range []struct{ answer, err string }{
		{``, "is not a CredentialProviderResponse in JSON"},
		{`secret`, "is not a CredentialProviderResponse in JSON"},
		{`{"kind": "CredentialProviderResponse"` + auth, "is not a CredentialProviderResponse in JSON"},
		{`{"kind": "Secret", "apiVersion": "credentialprovider.kubelet.k8s.io/v1"` + auth + `}`, `a "Secret" of`},
		{`{"kind": "CredentialProviderResponse", "apiVersion": "v1"` + auth + `}`, `of "v1" instead of`},
		{`{"kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "cacheDuration": "9999999999h"` + auth + `}`, "in JSON"},
		{`{"kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1"` + strings.Replace(auth, "Global", "All", 1) + `}`, `cacheKeyType "All"`},
	} {
		h := newHarness(t, `"*.example.com"`, "")
		if err := os.WriteFile(filepath.Join(h.dir, "answer"), []byte(c.answer), 0o600); err != nil {
			t.Fatal(err)
		}
		auth, err := h.list[0].ask(t.Context(), "a.example.com/x")
		if len(auth) > 0 || err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, %v", c.answer, auth, err)
		}
		if h.kept("a.example.com/x") {
			t.Errorf("%s is kept", c.answer)
		}
	}
}

// TestOwnAnswerComesFirst checks that an image for which an answer is kept gets that one, and not a
// later one for all images.
func TestOwnAnswerComesFirst(t *testing.T) {
	t.Parallel()
	answer := func(kind, password string) string {
		return fmt.Sprintf(`"cacheKeyType": %q, "auth": {"*.example.com": {"username": "u", "password": %q}}`, kind, password)
	}
	h := newHarness(t, `"*.example.com"`, answer("Image", "own"))
	want := []criconfig.Login{{Username: "u", Password: "own"}}
	h.Logins(t.Context(), "a.example.com/x")
	h.answer(answer("Global", "all"))
	h.Logins(t.Context(), "a.example.com/y")
	for range 50 {
		if got := h.Logins(t.Context(), "a.example.com/x"); !slices.Equal(got, want) {
			t.Fatalf("%v", got)
		}
	}
}
