package input

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestManifests(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"web.yaml": "web", "db.json": "db", "web.yaml~": "old", ".hidden.yaml": "hidden"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/pod.yaml" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write([]byte("from the net"))
	}))
	defer server.Close()
	got, err := Manifests(t.Context(), strings.NewReader("typed"), []string{dir, Stdin, server.URL + "/pod.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	var data []string
	for _, m := range got {
		data = append(data, string(m.Data))
	}
	if want := "db,web,typed,from the net"; strings.Join(data, ",") != want {
		t.Errorf("got %s, want %s", data, want)
	}
	for name, want := range map[string]string{
		server.URL + "/none.yaml":     "the server answered 404 Not Found",
		"http://127.0.0.1:1/pod.yaml": "connection refused",
		dir + "/none.yaml":            "none.yaml: no such file or directory",
		t.TempDir():                   "has no manifest",
	} {
		if _, err := Manifests(t.Context(), nil, []string{name}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}

func TestIsManifest(t *testing.T) {
	for name, want := range map[string]bool{
		"web.yaml": true, "-": true, "https://example.com/web": true, "shop/": true, "./shop": true, "/etc/pods": true, "..": true,
		"web": false, "default/web": false, "docker.io/library/nginx:1.27": false, "deployment/web": false,
	} {
		if IsManifest(name) != want {
			t.Errorf("%s: want %v", name, want)
		}
	}
}
