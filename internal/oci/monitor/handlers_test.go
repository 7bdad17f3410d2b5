package monitor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/huskd/husk/internal/hosttest"
)

func TestHandlers(t *testing.T) {
	hosttest.Root(t)
	counting, count := counted(t)
	cfg := config(t)
	find := func() Handlers {
		t.Helper()
		return FindHandlers(t.Context(), cfg, map[string]string{"runc": counting, "second": counting, "gone": "/no/such/runtime"})
	}
	h := find()
	must(t, h.Missing)
	tries := count()
	find()
	if count() != tries {
		t.Errorf("%d probes, and %d after a second FindHandlers: want no more", tries, count())
	}
	var names []string
	for _, w := range h.List() {
		names = append(names, w.Name)
		if usable := w.Missing == nil && w.Version != ""; usable != (w.Name != "gone") {
			t.Errorf("handler %+v", w)
		}
	}
	if got := strings.Join(names, " "); got != " gone runc second" && got != " crun gone runc second" {
		t.Errorf("handlers are %q", got)
	}
	for _, name := range []string{"runc", "second"} {
		if r, err := h.Get(name); err != nil || r.Name != "runc" || r.Path != counting {
			t.Errorf("handler %s is %+v, %v; want the runtime %s", name, r, err, counting)
		}
	}
	if r, err := h.Get(""); err != nil || r != h.Default {
		t.Errorf("the default is %+v, %v; want %+v", r, err, h.Default)
	}
	if _, err := h.Get("gone"); !errdefs.IsUnavailable(err) || err.Error() != "runtime handler gone can't be used: /no/such/runtime: not installed" {
		t.Errorf("Get of a missing runtime: %v", err)
	}
	if _, err := h.Get("other"); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "gone, runc, second, or none") {
		t.Errorf("Get of an unknown handler: %v", err)
	}
	if got := h.byRuntimeName("runc").Path; got != counting {
		t.Errorf("the path of runc is %s, want %s", got, counting)
	}
	if got := h.byRuntimeName("sh").Path; got == "" {
		t.Error("a program that isn't a handler is not looked up")
	}
}

func TestUserNamespaces(t *testing.T) {
	hosttest.Root(t)
	cfg := config(t, "runc")
	must(t, os.Chmod(filepath.Dir(cfg.StateDir), 0o711)) // which testing has made accessible to root alone
	r, _, err := Find(t.Context(), cfg)
	must(t, err)
	if can := r.NoUserNamespaces == ""; can != cfg.Host.IDMap {
		t.Errorf("NoUserNamespaces is %q on a host with IDMap %v", r.NoUserNamespaces, cfg.Host.IDMap)
	}
	if again, _, err := Find(t.Context(), cfg); err != nil || again != r {
		t.Errorf("a second Find returns %+v, %v; want %+v", again, err, r)
	}
}

// TestUserNamespaceMappings checks that the spec of a probe has the mappings of the user namespace
// that it names, as runc from 1.2 on reads them: it takes a path that begins with /proc/PID/ for a
// namespace of that process, and refuses mappings that differ in order or extent.
func TestUserNamespaceMappings(t *testing.T) {
	hosttest.Root(t)
	runc := locate("runc")
	if runc.Path == "" {
		t.Fatal("runc is not installed: apt-get install runc")
	}
	dir := t.TempDir()
	// The last container that a probe creates is the one in a user namespace.
	reading := filepath.Join(dir, "reading-runc")
	must(t, os.WriteFile(reading, []byte(`#!/bin/sh
for arg; do
	[ "$last" != --bundle ] || bundle=$arg
	last=$arg
done
if [ -n "$bundle" ]; then
	cp "$bundle/config.json" `+dir+`/
	path=$(sed -n 's/.*"type":"user","path":"\([^"]*\)".*/\1/p' "$bundle/config.json")
	if [ -n "$path" ]; then
		pid=${path#/proc/}; pid=${pid%%/*}
		cp /proc/$pid/uid_map /proc/$pid/gid_map `+dir+`/
	fi
fi
exec `+runc.Path+` "$@"
`), 0o755))
	cfg := config(t, reading)
	must(t, os.Chmod(filepath.Dir(cfg.StateDir), 0o711))
	if _, _, err := Find(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "config.json"))
	must(t, err)
	var spec specs.Spec
	must(t, json.Unmarshal(raw, &spec))
	for file, mappings := range map[string][]specs.LinuxIDMapping{"uid_map": spec.Linux.UIDMappings, "gid_map": spec.Linux.GIDMappings} {
		var want []string
		for _, m := range mappings {
			want = append(want, fmt.Sprint(m.ContainerID), fmt.Sprint(m.HostID), fmt.Sprint(m.Size))
		}
		raw, err := os.ReadFile(filepath.Join(dir, file))
		must(t, err)
		if got := strings.Fields(string(raw)); len(want) == 0 || !slices.Equal(got, want) {
			t.Errorf("the %s of the user namespace at %q is %q, the spec has %q", file, spec.Linux.Namespaces, got, want)
		}
	}
}

func TestNoHandlers(t *testing.T) {
	h := Only(Runtime{}, errdefs.ErrUnavailable)
	if _, err := h.Get(""); !errdefs.IsUnavailable(err) {
		t.Errorf("Get of the default: %v, want unavailable", err)
	}
	if _, err := h.Get("runc"); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "there is none") {
		t.Errorf("Get of a handler without any: %v", err)
	}
	if list := h.List(); len(list) != 1 || list[0].Missing == nil {
		t.Errorf("handlers are %+v, want a missing default", list)
	}
}

// TestRunscIsRefused checks that gVisor is left to package shim.
func TestRunscIsRefused(t *testing.T) {
	hosttest.Root(t)
	path := filepath.Join(t.TempDir(), "runsc")
	must(t, os.WriteFile(path, []byte("#!/bin/sh\necho runsc version release-1\n"), 0o755))
	h := FindHandlers(t.Context(), config(t), map[string]string{"gvisor": path})
	if _, err := h.Get("gvisor"); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "use a runtime handler of type shim") {
		t.Errorf("Get of runsc: %v", err)
	}
}
