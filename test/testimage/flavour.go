package testimage

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/huskd/husk/test/debian"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Flavour is one of the images that Build builds.
type Flavour string

// The flavours. Each contains the one before it.
const (
	// Busybox has busybox with all its applets and the usual directories. It runs a shell.
	Busybox Flavour = "busybox"
	// Users adds accounts to /etc/passwd and /etc/group: www-data (33), and alice (1000), who is also
	// in the group staff (50).
	Users Flavour = "users"
	// Web runs a web server on port 80 that answers GET / with one line: the host's name and
	// addresses, separated by spaces.
	Web Flavour = "web"
)

// Spec says which image to build. The zero Spec is the busybox image in one gzip layer.
type Spec struct {
	Flavour Flavour
	// Config's non-zero fields replace the flavour's.
	Config ocispec.ImageConfig
	// Layers is the number of layers, at least one. The first layers hold the flavour, the others a
	// file /layer/<number> each.
	Layers      int
	Compression Compression
}

//go:embed index.cgi
var indexCGI []byte

// Build builds an image from Debian packages. The first call on a host downloads them with apt-get.
func Build(ctx context.Context, spec Spec) (*Image, error) {
	root, err := extracted(ctx)
	if err != nil {
		return nil, fmt.Errorf("test image: %w", err)
	}
	entries, err := busyboxEntries(ctx, root)
	if err != nil {
		return nil, fmt.Errorf("test image: %w", err)
	}
	config := ocispec.ImageConfig{
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Cmd: []string{"/bin/sh"},
	}
	passwd, group := "root:x:0:0:root:/root:/bin/sh\n", "root:x:0:\n"
	if spec.Flavour == Users || spec.Flavour == Web {
		passwd += "www-data:x:33:33::/var/www:/bin/false\nalice:x:1000:1000::/home/alice:/bin/sh\n"
		group += "www-data:x:33:\nstaff:x:50:alice\nalice:x:1000:\n"
	}
	entries = append(entries, File("etc/passwd", 0o644, []byte(passwd)), File("etc/group", 0o644, []byte(group)))
	if spec.Flavour == Web {
		entries = append(entries, Dir("www", 0o755), Dir("www/cgi-bin", 0o755), File("www/cgi-bin/index.cgi", 0o755, indexCGI))
		config.Cmd = []string{"/bin/httpd", "-f", "-p", "80", "-h", "/www"}
		config.ExposedPorts = map[string]struct{}{"80/tcp": {}}
	}
	layers, err := split(spec, entries)
	if err != nil {
		return nil, fmt.Errorf("test image: %w", err)
	}
	platform := ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}
	return New(platform, override(config, spec.Config), layers...)
}

func busyboxEntries(ctx context.Context, root string) ([]Entry, error) {
	busybox, err := findProgram(root, "busybox")
	if err != nil {
		return nil, err
	}
	entries := []Entry{Dir("tmp", 0o1777), Dir("root", 0o700), Dir("var/tmp", 0o1777), Dir("home/alice", 0o755)}
	for _, dir := range []string{"bin", "dev", "etc", "home", "proc", "run", "sys", "usr", "usr/bin", "var"} {
		entries = append(entries, Dir(dir, 0o755))
	}
	for name, host := range busybox.files {
		for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
			entries = append(entries, Dir(dir[1:], 0o755))
		}
		body, err := os.ReadFile(host)
		if err != nil {
			return nil, err
		}
		entries = append(entries, File(name[1:], 0o755, body))
	}
	body, err := os.ReadFile(busybox.host)
	if err != nil {
		return nil, err
	}
	entries = append(entries, File("bin/busybox", 0o755, body))
	// The package's own loader runs the program, so this host's libraries don't matter.
	applets, err := debian.Output(ctx, root, busybox.loader, "--library-path", libraryPath(busybox), busybox.host, "--list")
	if err != nil {
		return nil, err
	}
	for _, applet := range strings.Fields(applets) {
		if applet != "busybox" {
			entries = append(entries, Symlink("bin/"+applet, "busybox"))
		}
	}
	// Interpreters that scripts name in their first line.
	entries = append(entries, Symlink("usr/bin/env", "../../bin/busybox"))
	return entries, nil
}

func libraryPath(p *program) string {
	dirs := map[string]bool{}
	for _, host := range p.files {
		dirs[filepath.Dir(host)] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(dirs)), ":")
}

// split sorts entries by name, so that a directory precedes its content, and packs them into the
// layers that spec asks for.
func split(spec Spec, entries []Entry) ([]Layer, error) {
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	entries = slices.CompactFunc(entries, func(a, b Entry) bool { return a.Name == b.Name })
	parts := [][]Entry{entries}
	if spec.Layers > 1 {
		lib := slices.IndexFunc(entries, func(e Entry) bool { return strings.HasPrefix(e.Name, "lib") })
		parts = [][]Entry{entries[lib:], entries[:lib]}
	}
	for n := len(parts); n < spec.Layers; n++ {
		parts = append(parts, []Entry{Dir("layer", 0o755), File(fmt.Sprintf("layer/%d", n+1), 0o644, fmt.Appendln(nil, n+1))})
	}
	var layers []Layer
	for _, part := range parts {
		layer, err := NewLayer(spec.Compression, part...)
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	return layers, nil
}

// override replaces the fields in config that are set in with.
func override(config, with ocispec.ImageConfig) ocispec.ImageConfig {
	if with.Entrypoint != nil {
		// As in a Dockerfile, a new entry point resets the command.
		config.Entrypoint, config.Cmd = with.Entrypoint, nil
	}
	if with.Cmd != nil {
		config.Cmd = with.Cmd
	}
	if with.ExposedPorts != nil {
		config.ExposedPorts = with.ExposedPorts
	}
	config.Env = append(config.Env, with.Env...)
	config.User, config.WorkingDir, config.StopSignal = with.User, with.WorkingDir, with.StopSignal
	config.Volumes, config.Labels = with.Volumes, with.Labels
	return config
}
