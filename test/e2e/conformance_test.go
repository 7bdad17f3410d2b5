package e2e

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/huskdtest"
)

// TestConformance runs the conformance tests of huskdtest, the fake huskd of husk's tests, against
// the real huskd.
func TestConformance(t *testing.T) {
	t.Parallel()
	n, d := start(t)
	cc, err := grpc.NewClient("unix://"+n.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	huskdtest.Conformance(t, huskdtest.Fixture{
		Client:    huskv1.NewHuskClient(cc),
		System:    huskv1.NewSystemClient(cc),
		Storage:   huskv1.NewStorageClient(cc),
		Manifests: huskv1.NewManifestsClient(cc),
		Debugging: huskv1.NewDebuggingClient(cc),
		Manifest:  []byte("{kind: Pod, apiVersion: v1, metadata: {name: web}, spec: {containers: [{name: app, image: 'localhost/web:1', command: [cat], stdin: true}]}}"),
		Pod:       "web",
		Cat:       []string{"cat"},
		Exit7:     []string{"sh", "-c", "exit 7"},
		Both:      []string{"sh", "-c", "echo to stdout; echo to stderr >&2"},
		Missing:   []string{"nothing"},
	})
	_ = cc.Close()
	d.Stop()
	n.NothingLeft()
}
