package volume

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/manifest/claim"
)

func claimant(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{}},
	}
}

func TestClaim(t *testing.T) {
	t.Parallel()
	v := Volumes{t.TempDir(), t.TempDir()}
	if _, err := v.SetUpClaim(claimant("a"), "data", nil); err == nil || !strings.Contains(err.Error(), "claim shop/data not found") {
		t.Errorf("a claim that nothing declares: %v", err)
	}
	path, err := v.SetUpClaim(claimant("a"), "data", claim.Encode(claim.Claim{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "x"), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := v.RemoveClaim("shop", "data"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("removing a claim in use: %v", err)
	}
	if err := v.TearDown("uid-a"); err != nil {
		t.Fatal(err)
	}
	// The claim stays, also when no manifest declares it any more.
	again, err := v.SetUpClaim(claimant("b"), "data", nil)
	if data, _ := os.ReadFile(filepath.Join(again, "x")); err != nil || string(data) != "kept" {
		t.Errorf("a later pod: %q %v", data, err)
	}
	if list, err := v.Claims(); err != nil || len(list) != 1 || list[0].Path != path || len(list[0].Pods) != 1 || list[0].Pods[0] != "shop/b" {
		t.Errorf("%+v %v", list, err)
	}
	if err := v.TearDown("uid-b"); err != nil {
		t.Fatal(err)
	}
	if err := v.RemoveClaim("shop", "data"); err != nil {
		t.Error(err)
	}
	if entries, _ := os.ReadDir(v.claims()); len(entries) > 0 {
		t.Errorf("%v is left", entries)
	}
	if err := v.RemoveClaim("shop", "data"); !errdefs.IsNotFound(err) {
		t.Errorf("removing it again: %v", err)
	}
	if err := v.RemoveClaim("..", "claims"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("removing a parent: %v", err)
	}
}

func TestExclusiveClaim(t *testing.T) {
	t.Parallel()
	v := Volumes{t.TempDir(), t.TempDir()}
	only := claim.Encode(claim.Claim{Modes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}})
	for range 2 { // a container of the pod that starts again
		if _, err := v.SetUpClaim(claimant("a"), "data", only); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := v.SetUpClaim(claimant("b"), "data", only); err == nil || !strings.Contains(err.Error(), "pod shop/a uses it") {
		t.Errorf("a second pod: %v", err)
	}
	if err := v.TearDown("uid-a"); err != nil {
		t.Fatal(err)
	}
	if _, err := v.SetUpClaim(claimant("b"), "data", only); err != nil {
		t.Error(err)
	}
}

func TestClaimOfVolume(t *testing.T) {
	t.Parallel()
	v := Volumes{t.TempDir(), t.TempDir()}
	volume := filepath.Join(t.TempDir(), "volume")
	path, err := v.SetUpClaim(claimant("a"), "data", claim.Encode(claim.Claim{Path: volume}))
	if err != nil || path != volume {
		t.Fatalf("%s %v, want %s", path, err, volume)
	}
	if err := os.WriteFile(filepath.Join(volume, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := v.TearDown("uid-a"); err != nil {
		t.Fatal(err)
	}
	if err := v.RemoveClaim("shop", "data"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(volume, "x")); err != nil {
		t.Errorf("the volume's files are gone: %v", err)
	}
}

// TestGroupOfClaim checks that the files of a claim become those of a pod's group, and that a link
// in it leads nowhere.
func TestGroupOfClaim(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	v := Volumes{t.TempDir(), t.TempDir()}
	path, err := v.SetUpClaim(claimant("a"), "data", claim.Encode(claim.Claim{}))
	if err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(t.TempDir(), "outside")
	for _, file := range []string{outside, filepath.Join(path, "x")} {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(path, "link")); err != nil {
		t.Fatal(err)
	}
	pod := claimant("b")
	pod.Spec.SecurityContext.FSGroup = new(int64(4321))
	if _, err := v.SetUpClaim(pod, "data", claim.Encode(claim.Claim{})); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]uint32{path: 4321, filepath.Join(path, "x"): 4321, outside: 0} {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Sys().(*syscall.Stat_t).Gid; got != want {
			t.Errorf("%s is of group %d, want %d", file, got, want)
		}
	}
}
