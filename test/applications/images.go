// Package applications runs applications as people publish them: manifests with Deployments,
// Services, Secrets and claims, and images of databases, web servers and programs between them.
package applications

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/huskd/husk/test/debian"
	"github.com/huskd/husk/test/testimage"
)

// packages are the packages of Debian 12 that the images' programs, and the libraries that these
// need, come from. About 60 MB are downloaded once.
var packages = strings.Fields(`
	busybox libc6 libgcc-s1 libstdc++6 zlib1g libzstd1 liblz4-1 liblzma5 libbz2-1.0 libcrypt1 libcap2 libgcrypt20 libgpg-error0 libsystemd0 libssl3
	redis-server redis-tools libatomic1 libjemalloc2 liblzf1
	postgresql-15 postgresql-client-15 libpq5 libreadline8 libtinfo6 libicu72 libxml2 libpam0g libaudit1 libcap-ng0 libselinux1 libpcre2-8-0
	libldap-2.5-0 libsasl2-2 libgnutls30 libp11-kit0 libffi8 libidn2-0 libunistring2 libtasn1-6 libhogweed6 libnettle8 libgmp10
	libgssapi-krb5-2 libkrb5-3 libkrb5support0 libk5crypto3 libcom-err2 libkeyutils1
	mariadb-server-core libaio1 libnuma1 liburing2
	wordpress wordpress-theme-twentytwentythree php-getid3 php8.2-cli php8.2-common php8.2-mysql libedit2 libbsd0 libmd0 libargon2-1 libsodium23
	etcd-server etcd-client tzdata
`)

// files are the images' scripts.
//
//go:embed images
var files embed.FS

// recipe says what an image has in addition to busybox, its shell and its directories.
type recipe struct {
	// programs are names of executables in the packages.
	programs []string
	// trees are directories and files of the packages.
	trees []string
	// scripts are paths in the image, and names in the directory images of what is there.
	scripts map[string]string
	// links are symbolic links in the image.
	links  map[string]string
	config ocispec.ImageConfig
}

const (
	entrypoint = "usr/local/bin/entrypoint"
	utc        = "usr/share/zoneinfo/Etc"
	utcFile    = "usr/share/zoneinfo/UTC"
)

// webServer is the configuration of images with a web server. As the first process of a container
// it ignores all signals but one.
var webServer = ocispec.ImageConfig{Cmd: []string{"httpd", "-f", "-p", "80", "-h", "/www"}, StopSignal: "SIGKILL"}

// recipes are the images by the names that manifests write. Debian's MySQL is MariaDB.
var recipes = map[string]recipe{
	"busybox:1.36": {},
	"redis:7": {
		programs: []string{"redis-server", "redis-cli"},
		config:   ocispec.ImageConfig{Cmd: []string{"redis-server", "--protected-mode", "no"}, ExposedPorts: map[string]struct{}{"6379/tcp": {}}},
	},
	"example/guestbook-frontend:v1": {
		programs: []string{"redis-cli"},
		scripts:  map[string]string{"www/cgi-bin/index.cgi": "guestbook.cgi"},
		config:   webServer,
	},
	"postgres:15": {
		programs: []string{"postgres", "initdb", "psql"},
		trees:    []string{"usr/lib/postgresql/15/lib", "usr/share/postgresql/15", utc, utcFile},
		scripts:  map[string]string{entrypoint: "postgres.sh"},
		config:   ocispec.ImageConfig{Entrypoint: []string{"/" + entrypoint}, User: "postgres", Env: []string{"PGDATA=/var/lib/postgresql/data"}, StopSignal: "SIGINT"},
	},
	"example/voting-vote:v1": {
		programs: []string{"redis-cli"},
		scripts:  map[string]string{"www/cgi-bin/index.cgi": "vote.cgi"},
		config:   webServer,
	},
	"example/voting-worker:v1": {
		programs: []string{"redis-cli", "psql"},
		scripts:  map[string]string{entrypoint: "worker.sh"},
		config:   ocispec.ImageConfig{Entrypoint: []string{"/" + entrypoint}},
	},
	"example/voting-result:v1": {
		programs: []string{"psql"},
		scripts:  map[string]string{"www/cgi-bin/index.cgi": "result.cgi"},
		config:   webServer,
	},
	"mysql:8.0": {
		programs: []string{"mariadbd"},
		trees:    []string{"usr/share/mysql"},
		scripts:  map[string]string{entrypoint: "mysql.sh"},
		config:   ocispec.ImageConfig{Entrypoint: []string{"/" + entrypoint}, Cmd: []string{"mariadbd"}},
	},
	"wordpress:6.1-php8.2": {
		programs: []string{"php8.2"},
		trees:    []string{"usr/lib/php", "usr/share/wordpress", "usr/share/php", "var/lib/wordpress", utc, utcFile},
		scripts:  map[string]string{entrypoint: "wordpress.sh", "usr/src/wp-config.php": "wp-config.php", "etc/php/8.2/cli/php.ini": "php.ini"},
		config: ocispec.ImageConfig{Entrypoint: []string{"/" + entrypoint}, WorkingDir: "/var/www/html", StopSignal: "SIGKILL",
			// WordPress sends requests to itself. On SIGINT, PHP would wait for its workers.
			Env: []string{"PHP_CLI_SERVER_WORKERS=4"}},
	},
	"quay.io/coreos/etcd:v3.4.23": {
		programs: []string{"etcd", "etcdctl"},
		links:    map[string]string{"usr/local/bin/etcd": "../../bin/etcd"},
		config:   ocispec.ImageConfig{Cmd: []string{"/usr/local/bin/etcd"}},
	},
}

// Build builds the image that manifests know by name. The first call on a host downloads its
// packages.
func Build(ctx context.Context, name string) (*testimage.Image, error) {
	r, known := recipes[name]
	if !known {
		return nil, fmt.Errorf("image %s: nothing says what is in it", name)
	}
	arch, err := debian.Output(ctx, "/", "dpkg", "--print-architecture")
	if err != nil {
		return nil, err
	}
	list := sha256.Sum256([]byte(strings.Join(packages, " ")))
	root, err := debian.Cached("husk-applications", strings.TrimSpace(arch)+"-"+hex.EncodeToString(list[:4]), func(root string) error {
		return debian.Extract(ctx, root, packages...)
	})
	if err != nil {
		return nil, err
	}
	busybox, err := testimage.Build(ctx, testimage.Spec{Flavour: testimage.Users})
	if err != nil {
		return nil, err
	}
	layer, err := r.layer(root)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", name, err)
	}
	config := r.config
	config.Env = append(config.Env, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/postgresql/15/bin")
	if config.Entrypoint == nil && config.Cmd == nil {
		config.Cmd = []string{"sh"}
	}
	return testimage.New(ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}, config, append(busybox.Layers, layer)...)
}

func (r recipe) layer(root string) (testimage.Layer, error) {
	// Busybox is there again, so that the libraries of all programs are of one version.
	entries, err := testimage.Programs(root, append(r.programs, "busybox")...)
	if err != nil {
		return testimage.Layer{}, err
	}
	for _, tree := range r.trees {
		more, err := treeOf(root, tree)
		if err != nil {
			return testimage.Layer{}, err
		}
		entries = append(entries, more...)
	}
	for name, file := range r.scripts {
		body, err := files.ReadFile("images/" + file)
		if err != nil {
			return testimage.Layer{}, err
		}
		entries = append(entries, testimage.File(name, 0o755, body))
	}
	for name, target := range r.links {
		entries = append(entries, testimage.Symlink(name, target))
	}
	if r.config.User == "postgres" {
		entries = append(entries,
			testimage.File("etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\npostgres:x:999:999::/var/lib/postgresql:/bin/sh\n")),
			testimage.File("etc/group", 0o644, []byte("root:x:0:\npostgres:x:999:\n")))
	}
	return testimage.NewLayer(testimage.Uncompressed, withParents(entries)...)
}

// treeOf returns the entries of a directory or file of the packages. Libraries of just-in-time
// compilation stay away: they need a compiler.
func treeOf(root, tree string) (entries []testimage.Entry, err error) {
	err = filepath.WalkDir(filepath.Join(root, tree), func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(p, root+"/")
		if strings.Contains(name, "llvmjit") || path.Base(name) == "bitcode" {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			entries = append(entries, testimage.Dir(name, int64(info.Mode().Perm())))
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			entries = append(entries, testimage.Symlink(name, target))
		case d.Type().IsRegular():
			body, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			entries = append(entries, testimage.File(name, int64(info.Mode().Perm()), body))
		}
		return nil
	})
	return entries, err
}

// withParents puts the directories that entries are in before them.
func withParents(entries []testimage.Entry) (out []testimage.Entry) {
	seen := map[string]bool{".": true}
	for _, e := range entries {
		var parents []string
		for dir := path.Dir(strings.TrimSuffix(e.Name, "/")); !seen[dir]; dir = path.Dir(dir) {
			seen[dir] = true
			parents = append([]string{dir}, parents...)
		}
		for _, dir := range parents {
			out = append(out, testimage.Dir(dir, 0o755))
		}
		seen[strings.TrimSuffix(e.Name, "/")] = true
		out = append(out, e)
	}
	return out
}
