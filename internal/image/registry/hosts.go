package registry

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
)

// hostDir returns a function that finds a registry's directory in certsDir and checks
// its hosts.toml. Without the check, containerd would only log an error and bypass the
// mirror.
func hostDir(certsDir string) func(host string) (string, error) {
	find := config.HostDirFromRoot(certsDir)
	return func(host string) (string, error) {
		dir, err := find(host)
		if err == nil {
			err = checkHosts(filepath.Join(dir, "hosts.toml"))
		}
		return dir, err
	}
}

var capabilities = []string{"pull", "resolve", "push", "referrers"}

// checkHosts returns an error if a hosts.toml exists and is malformed.
func checkHosts(path string) error {
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	type host struct {
		Server       string   `toml:"server"`
		Capabilities []string `toml:"capabilities"`
		SkipVerify   bool     `toml:"skip_verify"`
		OverridePath bool     `toml:"override_path"`
	}
	var file struct {
		host
		Hosts map[string]host `toml:"host"`
	}
	if err := toml.Unmarshal(raw, &file); err != nil {
		where := path
		if at := (*toml.DecodeError)(nil); errors.As(err, &at) {
			row, _ := at.Position()
			where = fmt.Sprintf("%s:%d", path, row)
			if key := strings.Join(at.Key(), "."); key != "" {
				where += ": " + key
			}
		}
		reason, _, _ := strings.Cut(err.Error(), " into struct field") // a Go type means nothing to the file's author
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("%s: %s", where, reason))
	}
	for _, h := range append(slices.Collect(maps.Values(file.Hosts)), file.host) {
		for _, c := range h.Capabilities {
			if !slices.Contains(capabilities, c) {
				return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("%s: unknown capability %q: use one of %v", path, c, capabilities))
			}
		}
	}
	return nil
}
