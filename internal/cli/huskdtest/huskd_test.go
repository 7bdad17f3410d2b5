package huskdtest

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	huskv1 "github.com/huskd/husk/api/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The fake conforms like the real huskd.
func TestConformance(t *testing.T) {
	dir, err := os.MkdirTemp("", "husk")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	h := New()
	if err := h.Listen(filepath.Join(dir, "s")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	cc, err := grpc.NewClient("unix://"+filepath.Join(dir, "s"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	Conformance(t, Fixture{
		Client:    huskv1.NewHuskClient(cc),
		System:    huskv1.NewSystemClient(cc),
		Storage:   huskv1.NewStorageClient(cc),
		Manifests: huskv1.NewManifestsClient(cc),
		Debugging: huskv1.NewDebuggingClient(cc),
		Manifest:  []byte("{kind: Pod, metadata: {name: web}, spec: {containers: [{name: app, image: localhost/web:latest, command: [cat], stdin: true}]}}"),
		Pod:       "web",
		Cat:       []string{"cat"},
		Exit7:     []string{"exit", "7"},
		Both:      []string{"both"},
		Missing:   []string{"nothing"},
	})
}
