package volume

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/huskd/husk/internal/hosttest"
)

func emptyDir(name string, medium corev1.StorageMedium, limit string) corev1.Volume {
	e := &corev1.EmptyDirVolumeSource{Medium: medium}
	if limit != "" {
		q := resource.MustParse(limit)
		e.SizeLimit = &q
	}
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: e}}
}

func host(path string, kind corev1.HostPathType) corev1.Volume {
	return corev1.Volume{Name: "h", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &kind}}}
}

func TestEmptyDirs(t *testing.T) {
	hosttest.Root(t)
	v := Volumes{Root: t.TempDir(), State: t.TempDir()}
	disk, err := v.SetUp("uid", emptyDir("disk", "", ""), nil)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(disk); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("%v, %v", info, err)
	}
	if err := os.WriteFile(filepath.Join(disk, "kept"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	memory, err := v.SetUp("uid", emptyDir("mem", corev1.StorageMediumMemory, "1Mi"), nil)
	if err != nil {
		t.Fatal(err)
	}
	var root unix.Stat_t
	if err := unix.Stat(memory, &root); err != nil || root.Mode&0o7777 != 0o1777 {
		t.Errorf("mode %o, %v", root.Mode, err)
	}
	shared, err := v.SetUp("uid", emptyDir("shared", corev1.StorageMediumMemory, ""), new(int64(123)))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Stat(shared, &root); err != nil || root.Mode&0o7777 != 0o3777 || root.Gid != 123 {
		t.Errorf("mode %o, group %d, %v", root.Mode, root.Gid, err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(memory, &st); err != nil || st.Type != unix.TMPFS_MAGIC || st.Blocks*uint64(st.Bsize) != 1<<20 {
		t.Errorf("%+v, %v", st, err)
	}
	for _, vol := range []corev1.Volume{emptyDir("disk", "", ""), emptyDir("mem", corev1.StorageMediumMemory, "1Mi")} {
		if _, err := v.SetUp("uid", vol, nil); err != nil {
			t.Errorf("again: %v", err)
		}
	}
	if _, err := os.Stat(filepath.Join(disk, "kept")); err != nil {
		t.Error(err)
	}
	if mounts, _ := mountinfo.GetMounts(mountinfo.PrefixFilter(v.State)); len(mounts) != 2 {
		t.Errorf("%d mounts", len(mounts))
	}
	// Host files that the pod has mounted into its volume must survive.
	precious := t.TempDir()
	if err := os.WriteFile(filepath.Join(precious, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	inside := filepath.Join(disk, "inside")
	if err := os.Mkdir(inside, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(precious, inside, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := v.TearDown("uid"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(precious, "file")); err != nil {
		t.Errorf("a file behind a mount was deleted: %v", err)
	}
	for _, dir := range []string{v.Root, v.State} {
		if left, _ := filepath.Glob(dir + "/pods/*"); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
}

func TestHostPathTypes(t *testing.T) {
	dir := t.TempDir()
	v := Volumes{Root: t.TempDir(), State: t.TempDir()}
	file, made, socket := dir+"/file", dir+"/a/b", dir+"/s"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, c := range []struct {
		path string
		kind corev1.HostPathType
		want string
	}{
		{dir + "/none", corev1.HostPathUnset, ""},
		{dir, corev1.HostPathDirectory, ""},
		{file, corev1.HostPathDirectory, "is not of type Directory"},
		{dir + "/none", corev1.HostPathDirectory, "no such file"},
		{made, corev1.HostPathDirectoryOrCreate, ""},
		{file, corev1.HostPathDirectoryOrCreate, "not a directory"},
		{file, corev1.HostPathFile, ""},
		{dir, corev1.HostPathFile, "is not of type File"},
		{dir + "/new", corev1.HostPathFileOrCreate, ""},
		{dir + "/no/dir", corev1.HostPathFileOrCreate, "no such file"},
		{socket, corev1.HostPathSocket, ""},
		{file, corev1.HostPathSocket, "is not of type Socket"},
		{"/dev/null", corev1.HostPathCharDev, ""},
		{"/dev/null", corev1.HostPathBlockDev, "is not of type BlockDevice"},
	} {
		path, err := v.SetUp("uid", host(c.path, c.kind), nil)
		if c.want == "" && (err != nil || path != c.path) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s of type %q: %q, %v; want %q", c.path, c.kind, path, err, c.want)
		}
	}
}

func TestUIDsThatAreNoNames(t *testing.T) {
	v := Volumes{Root: t.TempDir(), State: t.TempDir()}
	for _, uid := range []string{"", ".", "..", "a/b", "../../x"} {
		if _, err := v.SetUp(uid, emptyDir("e", "", ""), nil); err == nil {
			t.Errorf("SetUp accepted uid %q", uid)
		}
		if err := v.TearDown(uid); err == nil {
			t.Errorf("TearDown accepted uid %q", uid)
		}
	}
}
