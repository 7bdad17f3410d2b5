package volume

import (
	"os"
	"testing"
)

// TestModeIsKept checks that SetUp keeps the mode of a volume. An init container may have
// restricted it.
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
		t.Errorf("for the next container it has mode %o", got)
	}
	// A volume whose creation was interrupted.
	if err := os.Rename(path, path+".new"); err != nil {
		t.Fatal(err)
	}
	if got := mode(); got != 0o777 {
		t.Errorf("after an interrupted creation it has mode %o", got)
	}
}
