package volume

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// TestFailedImport checks that an archive that can't be unpacked leaves no claim that there wasn't
// before, and no namespace of one.
func TestFailedImport(t *testing.T) {
	v := Volumes{Root: t.TempDir()}
	whole := "a file"
	var good bytes.Buffer
	if err := os.WriteFile(v.Root+"/a", []byte(whole), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := archive(t.Context(), nil, &good, "-C", v.Root, "-c", "-f", "-", "a"); err != nil {
		t.Fatal(err)
	}
	bad := map[string]string{
		"no archive": strings.Repeat("no archive ", 200), "cut": good.String()[:600], "nothing that tar knows": "x",
	}
	for name, content := range bad {
		for _, namespace := range []string{"shop", "other"} {
			if err := v.Import(t.Context(), namespace, "data", strings.NewReader(content)); err == nil {
				t.Errorf("%s is imported", name)
			}
		}
		if left, err := os.ReadDir(v.claims()); err != nil || len(left) > 0 {
			t.Errorf("%s: left are %v, %v", name, left, err)
		}
	}
	if err := v.Import(t.Context(), "shop", "data", &good); err != nil {
		t.Fatal(err)
	}
	if err := v.Import(t.Context(), "shop", "data", strings.NewReader(bad["cut"])); err == nil {
		t.Error("half an archive is imported")
	}
	if err := v.Import(t.Context(), "shop", "more", strings.NewReader(bad["cut"])); err == nil {
		t.Error("half an archive is imported")
	}
	if claims, err := v.Claims(); err != nil || len(claims) != 1 {
		t.Errorf("claims %v, %v", claims, err)
	} else if got, err := os.ReadFile(claims[0].Path + "/a"); err != nil || string(got) != whole {
		t.Errorf("after failed imports the claim has %q, %v", got, err)
	}
}
