package input

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/huskd/husk/internal/cli/usageerror"
)

// Manifest is the content of a manifest file.
type Manifest struct {
	// Name is the file's, a URL, or Stdin.
	Name string
	Data []byte
}

const (
	// manifestMax bounds the size of a manifest. It leaves room in a gRPC message, and is far more
	// than a person writes.
	manifestMax = 3 << 20
	// downloadTimeout bounds the time to read a manifest from a URL.
	downloadTimeout = time.Minute
)

// extensions are those of the files of a directory that are manifests.
var extensions = []string{".yaml", ".yml", ".json"}

// Manifests reads the files, the URLs and the files of directories with these names. It reads all
// before it returns, so that a misspelt name doesn't leave only some pods running.
func Manifests(ctx context.Context, stdin io.Reader, names []string) ([]Manifest, error) {
	var manifests []Manifest
	var failures []error
	seen := map[string]bool{}
	for _, given := range names {
		files, err := manifestsAt(given)
		if err != nil {
			failures = append(failures, err)
		}
		for _, name := range files {
			if seen[name] {
				failures = append(failures, usageerror.New("%s is given twice: name each file once", name))
				continue
			}
			seen[name] = true
			data, err := readManifest(ctx, stdin, name)
			if err != nil {
				failures = append(failures, err)
				continue
			}
			manifests = append(manifests, Manifest{name, data})
		}
	}
	return manifests, errors.Join(failures...)
}

// IsManifest reports whether a name on the command line is that of a manifest or of several, rather
// than that of a pod or an image: standard input, a URL, a path that begins with . or / or ends
// with /, or a file with the extension of a manifest, whether it exists or not.
func IsManifest(name string) bool {
	return name == Stdin || isURL(name) || slices.Contains(extensions, filepath.Ext(name)) ||
		strings.HasPrefix(name, ".") || strings.HasPrefix(name, "/") || strings.HasSuffix(name, "/")
}

func isURL(name string) bool {
	return strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://")
}

// manifestsAt returns the manifests of a directory, and any other name as it is.
func manifestsAt(name string) (files []string, err error) {
	if info, err := os.Stat(name); name == Stdin || err != nil || !info.IsDir() {
		return []string{name}, nil
	}
	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, FileError(name, err)
	}
	for _, e := range entries {
		if slices.Contains(extensions, filepath.Ext(e.Name())) && !strings.HasPrefix(e.Name(), ".") && !e.IsDir() {
			files = append(files, filepath.Join(name, e.Name()))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no manifest: no file in it ends with .yaml, .yml or .json", name)
	}
	return files, nil
}

func readManifest(ctx context.Context, stdin io.Reader, name string) ([]byte, error) {
	shown, from := name, stdin
	switch {
	case name == Stdin:
		shown = "standard input"
	case isURL(name):
		ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
		defer cancel()
		body, err := download(ctx, name)
		if err != nil {
			return nil, err
		}
		defer body.Close()
		from = body
	default:
		file, err := os.Open(name)
		if err != nil {
			return nil, FileError(name, err)
		}
		defer file.Close()
		from = file
	}
	data, err := ReadAll(ctx, io.LimitReader(from, manifestMax+1))
	switch {
	case err != nil:
		return nil, FileError(shown, err)
	case len(data) > manifestMax:
		return nil, fmt.Errorf("%s is too large for a manifest: it has more than %d MiB", shown, manifestMax>>20)
	case len(data) == 0:
		return nil, fmt.Errorf("%s is empty: it must contain a manifest", shown)
	}
	return data, nil
}

func download(ctx context.Context, url string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("%s is not a valid URL: %w", url, err)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("can't read the manifest: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		answer.Body.Close()
		return nil, fmt.Errorf("can't read %s: the server answered %s", url, answer.Status)
	}
	return answer.Body, nil
}
