package install

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/huskd/husk/internal/hosttest"
)

// TestRPM installs, upgrades and removes the .rpm in a directory that rpm takes for a whole system.
// There, rpm runs the package's scripts with a shell and a systemctl that records its arguments.
func TestRPM(t *testing.T) {
	hosttest.Root(t)
	older, newer := one(t, release(t, "1.0.0"), "husk-1.0.0*.x86_64.rpm"), one(t, release(t, "1.1.0"), "husk-1.1.0*.x86_64.rpm")
	root := t.TempDir()
	write := func(path, content string, mode fs.FileMode) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range append(regexp.MustCompile(`/\S+`).FindAllString(run(t, "ldd", "/bin/sh"), -1), "/bin/sh") {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		write(path, string(content), 0o755)
	}
	write("/usr/bin/systemctl", "#!/bin/sh\necho \"$@\" >>/calls\n[ \"$2\" != is-active ]\n", 0o755)
	write("/run/systemd/system/x", "", 0o644)
	run(t, "mkdir", filepath.Join(root, "dev"))
	run(t, "mknod", filepath.Join(root, "dev/null"), "c", "1", "3")
	rpm := func(args ...string) {
		t.Helper()
		run(t, "rpm", append([]string{"--root", root, "--force-debian"}, args...)...)
	}
	calls := func(when string, want ...string) {
		t.Helper()
		got, err := os.ReadFile(filepath.Join(root, "calls"))
		if err != nil || !slices.Equal(strings.Split(strings.TrimSpace(string(got)), "\n"), want) {
			t.Errorf("%s, the scripts call systemctl %q, %v; want %q", when, got, err, want)
		}
		_ = os.Remove(filepath.Join(root, "calls"))
	}
	run(t, "rpm", "--root", root, "--initdb")
	before := files(t, root)

	rpm("-i", "--nodeps", older)
	calls("at the installation", "daemon-reload", "-q preset huskd.service")
	for _, path := range []string{"usr/bin/huskd", "usr/bin/husk", "usr/lib/systemd/system/huskd.service", "usr/share/man/man8/huskd.8.gz", "etc/husk/huskd.toml", "etc/husk/pods"} {
		if _, err := os.Stat(filepath.Join(root, path)); err != nil {
			t.Error(err)
		}
	}
	rpm("-V", "--nodeps", "husk")
	const config = "# changed\n"
	write("/etc/husk/huskd.toml", config, 0o644)
	rpm("-U", "--nodeps", newer)
	calls("at the upgrade", "daemon-reload", "try-restart huskd.service", "daemon-reload")
	if got, err := os.ReadFile(filepath.Join(root, "etc/husk/huskd.toml")); string(got) != config {
		t.Errorf("after the upgrade the configuration is %q, %v", got, err)
	}
	rpm("-U", "--nodeps", "--oldpackage", older)
	calls("on the way back", "daemon-reload", "try-restart huskd.service", "daemon-reload")
	rpm("-e", "husk")
	calls("at the removal", "-q is-active huskd.service", "-q disable --now huskd.service", "-q stop husk-shutdown.service", "daemon-reload")
	left := slices.DeleteFunc(files(t, root), func(path string) bool { return slices.Contains(before, path) })
	if want := []string{"etc/husk/huskd.toml.rpmsave"}; !slices.Equal(left, want) {
		t.Errorf("the removal leaves %q, want %q", left, want)
	}
}

// files lists the files below a directory, apart from rpm's own.
func files(t *testing.T, root string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(root, path)
		if err == nil && !d.IsDir() && !strings.HasPrefix(rel, "var/lib/rpm/") && !strings.HasPrefix(rel, "root/.rpmdb/") {
			all = append(all, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
