package image

import (
	"bytes"
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/image/access"
	"github.com/huskd/husk/internal/image/database"
	"github.com/huskd/husk/test/testimage"
)

// alice is the login that the handler login accepts.
var alice = PullOptions{Username: "alice", Password: "secret"}

// may reports whether a pod with these logins may use an image.
func may(t testing.TB, s *Store, name string, logins ...PullOptions) bool {
	t.Helper()
	_, allowed, err := s.GetFor(name, func(string) (out []access.Credential) {
		for _, l := range logins {
			out = append(out, Credential(l.Username, l.Password, l.Secret))
		}
		return out
	})
	if err != nil && !errdefs.IsNotFound(err) {
		t.Error(err)
	}
	return allowed
}

// TestGrantsLiveAsLongAsTheImage checks that who may use an image is known as soon as there is the
// image, after a restart and a damage too, and is forgotten with it.
func TestGrantsLiveAsLongAsTheImage(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	root := filepath.Join(t.TempDir(), "images")
	s, r := openStore(t, root), newRegistry(t, login(true))
	img := makeImage(t, 1, 1, 1000)
	name := r.push(t, "web", "v1", img)
	fromSecret := alice
	fromSecret.Secret = access.Secret{UID: "u", Namespace: "n", Name: "s"}
	renewed := PullOptions{Username: "alice", Password: "newer", Secret: fromSecret.Secret}
	if _, err := s.Pull(t.Context(), name, fromSecret); err != nil {
		t.Fatal(err)
	}
	check := func(when string, nobody, owner bool) {
		t.Helper()
		if may(t, s, name) != nobody || may(t, s, name, alice) != owner || may(t, s, name, renewed) != owner || may(t, s, img.ID()) != nobody || may(t, s, img.ID()[7:17], alice) != owner {
			t.Errorf("%s: a pod without the login may use the image %t, one with it %t", when, may(t, s, name), may(t, s, name, alice))
		}
	}
	reopen := func() {
		t.Helper()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openStore(t, root)
	}
	check("pulled", false, true)
	reopen()
	check("after a restart", false, true)

	damage := func(add map[string]string) {
		t.Helper()
		records, err := s.db.Records()
		if err != nil || len(records) != 1 || len(records[0].Grants) != 1 {
			t.Fatal(records, err)
		}
		changes := map[string]string{}
		for key := range records[0].Grants {
			changes[key] = "{damaged"
		}
		for key, text := range add {
			changes[key] = text
		}
		op, err := s.db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := op.Commit(database.Record{ID: img.ID(), Manifest: records[0].Manifest, Grants: changes}); err != nil {
			t.Fatal(err)
		}
	}
	damage(nil)
	reopen()
	check("damaged", false, false)
	if _, err := s.Pull(t.Context(), name, fromSecret); err != nil {
		t.Fatal(err)
	}
	check("pulled again", false, true)
	reopen()
	check("pulled again, after a restart", false, true)

	if _, err := s.Remove(t.Context(), img.ID(), false); err != nil {
		t.Fatal(err)
	}
	check("removed", false, false)
	if _, err := s.Load(t.Context(), bytes.NewReader(archiveOf(t, testimage.Named{Image: img, Names: []string{name}})), nil); err != nil {
		t.Fatal(err)
	}
	check("loaded from an archive", true, true)
}

// TestPullIsNotSharedAcrossLogins holds up the download of a pull with a login. Another one without
// it doesn't get the image from that, nor does one whose login is wrong.
func TestPullIsNotSharedAcrossLogins(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	started, finish := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s, r := newStore(t), newRegistry(t, onBlobs(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		once.Do(func() { close(started) })
		<-finish
		next.ServeHTTP(w, r)
	}), login(false))
	name := r.push(t, "web", "v1", makeImage(t, 1, 1, 1000))
	owner := make(chan error, 1)
	go func() {
		_, err := s.Pull(t.Context(), name, alice)
		owner <- err
	}()
	<-started
	for _, opts := range []PullOptions{{}, {Username: "alice", Password: "wrong"}, {Username: "alice", Password: "wrong", Access: access.Node}} {
		if img, err := s.Pull(t.Context(), name, opts); err == nil {
			t.Errorf("%+v gets %s", opts, img.ID)
		}
	}
	close(finish)
	if err := <-owner; err != nil || may(t, s, name) || !may(t, s, name, alice) {
		t.Errorf("the pull with the login: %v; a pod without it may use the image: %t", err, may(t, s, name))
	}
}

// TestDigestsOpenNothing attacks an image that was pulled with a login by registries of the
// attacker, which know its digests, its manifest or its config, but not its layers. Only a registry
// that has all of it can have huskd use it under another name.
func TestDigestsOpenNothing(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	private := makeImage(t, 1, 2, 10_000)
	junk := makeLayer(t, testimage.Gzip, 77, 100)
	claiming := assemble(t, junk, junk) // its config claims the layers of the private image
	claiming.Config = private.Config
	var m ocispec.Manifest
	if err := json.Unmarshal(claiming.Manifest, &m); err != nil {
		t.Fatal(err)
	}
	m.Config.Digest, m.Config.Size = digest.FromBytes(private.Config), int64(len(private.Config))
	raw, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	claiming.Manifest, claiming.Descriptor.Digest, claiming.Descriptor.Size = raw, digest.FromBytes(raw), int64(len(raw))
	reply := func(w http.ResponseWriter, r *http.Request, mediaType string, content []byte) {
		w.Header().Set("Content-Type", mediaType)
		w.Header().Set("Docker-Content-Digest", digest.FromBytes(content).String())
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}
	// knows serves the manifest of an image, its config, and as many of its layers.
	knows := func(img *testimage.Image, manifest, config bool, layers int) handler {
		return func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			switch {
			case strings.Contains(r.URL.Path, "/manifests/") && (manifest || r.Method == http.MethodHead):
				reply(w, r, ocispec.MediaTypeImageManifest, img.Manifest)
				return
			case config && strings.HasSuffix(r.URL.Path, digest.FromBytes(img.Config).String()):
				reply(w, r, "application/octet-stream", img.Config)
				return
			}
			for _, l := range img.Layers[:layers] {
				if strings.HasSuffix(r.URL.Path, l.Descriptor.Digest.String()) {
					reply(w, r, "application/octet-stream", l.Blob)
					return
				}
			}
			if r.Method == http.MethodHead && strings.Contains(r.URL.Path, "/blobs/") {
				return // it claims to have all
			}
			http.NotFound(w, r)
		}
	}
	for _, c := range []struct {
		name  string
		knows handler
		img   *testimage.Image
		want  bool
	}{
		{"the digest", knows(private, false, false, 0), private, false},
		{"the manifest", knows(private, true, false, 0), private, false},
		{"the config", knows(private, true, true, 0), private, false},
		{"one layer", knows(private, true, true, 1), private, false},
		{"other layers with its diff IDs", knows(claiming, true, true, 2), claiming, false},
		{"all, as a mirror", knows(private, true, true, 2), private, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, owner, evil := newStore(t), newRegistry(t, login(false)), newRegistry(t, c.knows)
			name := owner.push(t, "team/app", "1", private)
			if _, err := s.Pull(t.Context(), name, alice); err != nil {
				t.Fatal(err)
			}
			for _, ref := range []string{evil.host + "/pub@" + c.img.Descriptor.Digest.String(), evil.host + "/pub:1"} {
				for _, opts := range []PullOptions{{}, {Username: "eve", Password: "secret"}} {
					if img, err := s.Pull(t.Context(), ref, opts); (err == nil) != c.want {
						t.Errorf("%s as %q: %s, %v", ref, opts.Username, img.ID, err)
					}
					if got := may(t, s, ref, opts); got != c.want {
						t.Errorf("%s as %q: the pod may use it: %t", ref, opts.Username, got)
					}
				}
			}
			if may(t, s, name) {
				t.Error("the private name is free")
			}
			before := owner.gets("/blobs/")
			other := owner.push(t, "team/app", "2", private)
			if _, err := s.Pull(t.Context(), other, alice); err != nil || owner.gets("/blobs/") != before {
				t.Errorf("its owner downloads it again: %v, %d blobs", err, owner.gets("/blobs/")-before)
			}
		})
	}
}
