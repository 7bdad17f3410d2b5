package conf

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func acceptAll(*libcni.NetworkConfigList) error { return nil }

const good = `{"cniVersion":"1.0.0","name":"NAME","plugins":[{"type":"bridge"}]}`

func write(t *testing.T, dir, file, content string) {
	t.Helper()
	path := filepath.Join(dir, file)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func named(name string) string { return strings.Replace(good, "NAME", name, 1) }

func names(f Found) string {
	var out []string
	for _, n := range f.Networks {
		out = append(out, n.List.Name)
	}
	return strings.Join(out, " ")
}

func TestLoadOrderAndForms(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "100-c.conflist", named("c"))
	write(t, dir, "87-d.conflist", named("d"))
	write(t, dir, "88-single.conf", `{"cniVersion":"0.3.1","name":"single","type":"ptp","mtu":9007199254740993}`)
	write(t, dir, "89-list.conf", named("listInConf"))
	write(t, dir, "90-j.json", named("j"))
	write(t, dir, "91-old.conf", `{"name":"old","type":"bridge"}`)
	write(t, dir, "92-versions.conflist", `{"cniVersion":"0.3.1","cniVersions":["0.4.0","1.0.0","99.0.0"],"name":"versions","plugins":[{"type":"x"}]}`)
	write(t, dir, "01-x.cilium_bak", named("bak"))
	write(t, dir, "05-net.conf~", named("editor"))
	write(t, dir, "README", "hello")
	write(t, dir, "dir.conf/x", "")
	// huskd wrote this one for other runtimes.
	write(t, dir, "10-husk.conflist", `{"cniVersion":"1.0.0","name":"husk","plugins":[{"type":"husk-cni","network":"node","daemon":"/run/husk/husk.sock"}]}`)
	found, err := Load(dir, acceptAll)
	if err != nil {
		t.Fatal(err)
	}
	if got := names(found); got != "c d single listInConf j old versions" || len(found.Skipped) != 0 {
		t.Errorf("got %s, skipped %v", got, found.Skipped)
	}
	for name, want := range map[string]string{"versions": "1.0.0", "old": "0.1.0", "single": "0.3.1"} {
		if n, _ := found.Network(name); n.List.CNIVersion != want {
			t.Errorf("%s has version %s, want %s", name, n.List.CNIVersion, want)
		}
	}
	if n, _ := found.Network("single"); !strings.Contains(string(n.List.Plugins[0].Bytes), "9007199254740993") {
		t.Errorf("a large number is changed: %s", n.List.Plugins[0].Bytes)
	}
}

func TestPluginsOfFolder(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "1.conflist", `{"cniVersion":"1.1.0","name":"web","plugins":[{"type":"a"}]}`)
	write(t, dir, "web/2-c.conf", `{"type":"c","capabilities":{"x":true}}`)
	write(t, dir, "web/1-b.conf", `{"type":"b"}`)
	write(t, dir, "web/3.conflist", `{"type":"not read"}`)
	write(t, dir, "2.conflist", `{"cniVersion":"1.1.0","name":"only","loadOnlyInlinedPlugins":true,"plugins":[{"type":"a"}]}`)
	write(t, dir, "only/1.conf", `{"type":"b"}`)
	write(t, dir, "3.conflist", `{"cniVersion":"1.1.0","name":"folder"}`)
	write(t, dir, "folder/1.conf", `{"type":"z"}`)
	found, err := Load(dir, acceptAll)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"web": "a b c", "only": "a", "folder": "z"} {
		n, _ := found.Network(name)
		if n.List == nil {
			t.Fatalf("%s is skipped: %v", name, found.Skipped)
		}
		// The recorded form has all plugins inlined.
		data, err := Marshal(n.List)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Unmarshal(data)
		if err != nil {
			t.Fatal(err)
		}
		for _, list := range []*libcni.NetworkConfigList{n.List, again} {
			var types []string
			for _, p := range list.Plugins {
				types = append(types, p.Network.Type)
			}
			if got := strings.Join(types, " "); got != want {
				t.Errorf("%s has plugins %s, want %s", name, got, want)
			}
		}
		if again.Name != name || again.CNIVersion != "1.1.0" {
			t.Errorf("recorded as %+v", again)
		}
	}
}

func TestSkippedFilesSayWhy(t *testing.T) {
	dir := t.TempDir()
	want := map[string]string{}
	for file, c := range map[string]struct{ content, want string }{
		"01.conf":     {`{`, "is not a JSON object: unexpected end of JSON input"},
		"02.conf":     {``, "is not a JSON object"},
		"03.conf":     {`[]`, "is not a JSON object"},
		"04.conf":     {`{"name":"n","type":""}`, "missing 'type'"},
		"05.conf":     {`{"type":"x"}`, "has no name"},
		"06.conf":     {`{"name":"../n","type":"x"}`, `name "../n"`},
		"07.conf":     {`{"name":"v","type":"x","cniVersion":"2.0.0"}`, `cniVersion "2.0.0" is none of 0.1.0`},
		"08.conflist": {`{"name":"p","cniVersion":"1.0.0","plugins":[]}`, "no plugins in list"},
		"09.conflist": {`{"name":"q","cniVersion":"1.0.0"}`, "names no plugin"},
		"10.conflist": {`{"name":"r","cniVersion":"1.0.0","plugins":[{"type":"../../bin/sh"}]}`, `type "../../bin/sh" is not the name of a program`},
		"11.conflist": {`{"name":"s","cniVersion":"1.0.0","plugins":[{"type":".."}]}`, "is not the name of a program"},
		"12.conflist": {`{"name":1,"plugins":[{"type":"x"}]}`, "invalid name type"},
		"13.conflist": {`{"name":"t","plugins":"x"}`, "invalid 'plugins' type"},
		"14.conf":     {`{"name":"lo","type":"loopback"}`, "configures the loopback"},
		"15.conflist": {named("dup"), ""},
		"16.conflist": {named("dup"), "network dup is already configured by 15.conflist"},
		"17.conflist": {named("unusable"), "no program"},
		"18.conf":     {strings.Repeat(" ", 1<<20+1), "is larger than"},
	} {
		write(t, dir, file, c.content)
		want[file] = c.want
	}
	found, err := Load(dir, func(l *libcni.NetworkConfigList) error {
		if l.Name == "unusable" {
			return errors.New("no program")
		}
		return nil
	})
	if err != nil || len(found.Skipped) != len(want)-1 || names(found) != "dup" {
		t.Fatalf("%v, %+v", err, found)
	}
	for _, s := range found.Skipped {
		if !strings.Contains(s.Why, want[s.File]) || strings.Contains(s.Why, "\n") {
			t.Errorf("%s: got %q, want …%s…", s.File, s.Why, want[s.File])
		}
	}
	if err := os.Symlink("/nowhere", filepath.Join(dir, "19.conf")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "18-pipe.conf"), 0o600); err != nil {
		t.Fatal(err)
	}
	found, _ = Load(dir, acceptAll)
	if pipe := found.Skipped[len(found.Skipped)-2]; pipe.File != "18.conf" && pipe.Why != "is not a regular file" {
		t.Errorf("pipe: %+v", pipe)
	}
	if last := found.Skipped[len(found.Skipped)-1]; last.File != "19.conf" || last.Why != "no such file or directory" {
		t.Errorf("dangling link: %+v", last)
	}
}

func FuzzFile(f *testing.F) {
	f.Add([]byte(named("x")))
	f.Add([]byte(`{"name":"n","type":"x","cniVersions":[]}`))
	f.Add([]byte(`{"name":"n","plugins":[null]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		write(t, dir, "x.conf", string(data))
		found, err := Load(dir, acceptAll)
		if err != nil || len(found.Networks)+len(found.Skipped) != 1 {
			t.Fatalf("%v, %+v", err, found)
		}
		for _, n := range found.Networks {
			stored, err := Marshal(n.List)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Unmarshal(stored); err != nil {
				t.Fatalf("%s: %v", stored, err)
			}
		}
	})
}

// watched returns a running Watch.
func watched(t *testing.T, dir string) *Watch {
	t.Helper()
	w := NewWatch(dir, acceptAll, slog.New(slog.NewTextHandler(io.Discard, nil)))
	done := make(chan struct{})
	ctx := t.Context()
	go func() {
		defer close(done)
		w.Run(ctx)
	}()
	t.Cleanup(func() { <-done })
	return w
}

// becomes waits until the watch has the networks or the error want. A star follows
// stale networks.
func becomes(t *testing.T, w *Watch, want string) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		s := w.State()
		got := names(s.Found)
		if s.Stale != "" {
			got += "*"
		}
		if s.Err != nil {
			got = s.Err.Error()
		}
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("got %q, want %q", got, want)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func TestWatch(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	dir := filepath.Join(base, "etc", "cni", "net.d")
	w := watched(t, dir)
	becomes(t, w, "")
	write(t, dir, "2.conflist", named("b")) // the directory appears
	becomes(t, w, "b")
	write(t, dir, "1.conflist", named("a"))
	becomes(t, w, "a b")
	if err := os.Rename(filepath.Join(dir, "1.conflist"), filepath.Join(dir, "1.conflist.bak")); err != nil {
		t.Fatal(err)
	}
	becomes(t, w, "b")
	write(t, base, "outside", named("c")) // a move into the directory is only a create event
	if err := os.Rename(filepath.Join(base, "outside"), filepath.Join(dir, "0.conf")); err != nil {
		t.Fatal(err)
	}
	becomes(t, w, "c b")
	if err := os.Remove(filepath.Join(dir, "2.conflist")); err != nil {
		t.Fatal(err)
	}
	becomes(t, w, "c")
	write(t, dir, "c/more.conf", `{"type":"more"}`) // a further plugin
	deadline := time.Now().Add(30 * time.Second)
	for len(w.State().Networks[0].List.Plugins) != 2 {
		if time.Now().After(deadline) {
			t.Fatal("the plugin in the network's directory is not noticed")
		}
		time.Sleep(2 * time.Millisecond)
	}
	write(t, dir, "0.conf", `{"half`) // being written
	becomes(t, w, "c*")
	write(t, dir, "0.conf", named("d"))
	becomes(t, w, "d")
	// Replace the directory.
	next := filepath.Join(base, "next")
	write(t, next, "x.conf", named("e"))
	if err := os.Rename(dir, filepath.Join(base, "away")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, dir); err != nil {
		t.Fatal(err)
	}
	becomes(t, w, "e")
	write(t, dir, "x.conf", named("f")) // the new directory is watched
	becomes(t, w, "f")
	// Remove everything: the networks go after emptyGrace.
	if err := os.RemoveAll(filepath.Join(base, "etc")); err != nil {
		t.Fatal(err)
	}
	becomes(t, w, "f*")
	becomes(t, w, "")
	write(t, dir, "y.conf", named("g"))
	becomes(t, w, "g")
}

// TestUnreadableDirectory checks that the networks of an unreadable directory are kept.
// Root can read any directory, so a file takes its place.
func TestUnreadableDirectory(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	dir := filepath.Join(base, "net.d")
	write(t, dir, "1.conf", named("a"))
	w := watched(t, dir)
	becomes(t, w, "a")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	write(t, base, "net.d", "")
	deadline := time.Now().Add(30 * time.Second)
	for !strings.Contains(w.State().Stale, "not a directory") {
		if time.Now().After(deadline) {
			t.Fatalf("got %+v", w.State())
		}
		time.Sleep(2 * time.Millisecond)
	}
	becomes(t, w, "a*")
}

// TestNothingUsable checks that a directory with only unusable files is an error, rather
// than one without configuration.
func TestNothingUsable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "1.conf", `{"name":"x"}`)
	write(t, dir, "2.conf", `{`)
	w := watched(t, dir)
	becomes(t, w, "no usable CNI configuration in "+dir+": 1.conf: names no plugin; 2.conf: is not a JSON object: unexpected end of JSON input")
	write(t, dir, "2.conf", named("b"))
	becomes(t, w, "b")
}

// TestConstantRewrites checks that a file that is rewritten all the time is never seen
// incomplete.
func TestConstantRewrites(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "1.conf", named("a"))
	w := watched(t, dir)
	for range 300 {
		write(t, dir, "1.conf", named("a"))
		if s := w.State(); names(s.Found) != "a" || s.Err != nil {
			t.Fatalf("got %+v", s)
		}
	}
}
