package image

import (
	"bytes"
	"net/http"
	"path/filepath"
	"sync"
	"testing"

	"github.com/containerd/errdefs"

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
