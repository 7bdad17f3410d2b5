package monitor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/hosttest"
)

func TestHandlers(t *testing.T) {
	hosttest.Root(t)
	noting, count := counted(t)
	cfg := config(t)
	find := func() Handlers {
		t.Helper()
		return FindHandlers(t.Context(), cfg, map[string]string{"runc": noting, "second": noting, "gone": "/no/such/runtime"})
	}
	h := find()
	must(t, h.Missing)
	tries := count()
	find()
	if count() != tries {
		t.Errorf("it has forgotten: %d tries, then %d", tries, count())
	}
	var names []string
	for _, w := range h.List() {
		names = append(names, w.Name)
		if usable := w.Missing == nil && w.Version != ""; usable != (w.Name != "gone") {
			t.Errorf("%+v", w)
		}
	}
	if got := strings.Join(names, " "); got != " gone runc second" && got != " crun gone runc second" {
		t.Errorf("handlers %q", got)
	}
	for _, name := range []string{"runc", "second"} {
		if r, err := h.Get(name); err != nil || r.Name != "runc" || r.Path != noting {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	if r, err := h.Get(""); err != nil || r != h.Default {
		t.Errorf("the default: %+v, %v", r, err)
	}
	if _, err := h.Get("gone"); !errdefs.IsUnavailable(err) || err.Error() != "runtime handler gone can't be used: /no/such/runtime: not installed" {
		t.Error(err)
	}
	if _, err := h.Get("other"); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "gone, runc, second, or none") {
		t.Error(err)
	}
	if got := h.byRuntimeName("runc").Path; got != noting {
		t.Errorf("runc is %s", got)
	}
	if got := h.byRuntimeName("sh").Path; got == "" {
		t.Error("what is no handler isn't looked for")
	}
}

func TestUserNamespaces(t *testing.T) {
	hosttest.Root(t)
	cfg := config(t, "runc")
	must(t, os.Chmod(filepath.Dir(cfg.StateDir), 0o711)) // testing has made it for root alone
	r, _, err := Find(t.Context(), cfg)
	must(t, err)
	if can := r.NoUserNamespaces == ""; can != cfg.Host.IDMap {
		t.Errorf("user namespaces: %q, idmapped mounts: %v", r.NoUserNamespaces, cfg.Host.IDMap)
	}
	if again, _, err := Find(t.Context(), cfg); err != nil || again != r {
		t.Errorf("remembered: %+v, %v", again, err)
	}
}

func TestNoHandlers(t *testing.T) {
	h := Only(Runtime{}, errdefs.ErrUnavailable)
	if _, err := h.Get(""); !errdefs.IsUnavailable(err) {
		t.Error(err)
	}
	if _, err := h.Get("runc"); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "there is none") {
		t.Error(err)
	}
	if list := h.List(); len(list) != 1 || list[0].Missing == nil {
		t.Errorf("%+v", list)
	}
}

// TestRunscIsRefused: gVisor is for package shim.
func TestRunscIsRefused(t *testing.T) {
	hosttest.Root(t)
	path := filepath.Join(t.TempDir(), "runsc")
	must(t, os.WriteFile(path, []byte("#!/bin/sh\necho runsc version release-1\n"), 0o755))
	h := FindHandlers(t.Context(), config(t), map[string]string{"gvisor": path})
	if _, err := h.Get("gvisor"); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "use a runtime handler of type shim") {
		t.Error(err)
	}
}
