package volume

import (
	"os"
	"testing"
)

// An init container may have closed the volume to others, as databases want it.
func TestModeIsKept(t *testing.T) {
	v := Volumes{Root: t.TempDir(), State: t.TempDir()}
	mode := func() os.FileMode {
		t.Helper()
		path, err := v.SetUp("uid", emptyDir("e", "", ""), nil)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode().Perm()
	}
	if got := mode(); got != 0o777 {
		t.Errorf("a new volume has mode %o", got)
	}
	path, _ := v.SetUp("uid", emptyDir("e", "", ""), nil)
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if got := mode(); got != 0o700 {
		t.Errorf("for the next container its mode is %o", got)
	}
	// One of which huskd had made no more than this when it was killed.
	if err := os.Rename(path, path+".new"); err != nil {
		t.Fatal(err)
	}
	if got := mode(); got != 0o777 {
		t.Errorf("a volume that was made half has mode %o", got)
	}
}
