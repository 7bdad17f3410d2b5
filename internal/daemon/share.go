package daemon

import (
	"log/slog"
	"path/filepath"

	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/sharedmount"
)

// shareDirs makes huskd's directories shared mounts if they are on private ones, as kubelet does
// with its own. A runtime or storage driver that runs in a mount namespace of its own then sees the
// root file systems and volumes that are mounted later. docs/decisions/0030 says why it can fail.
func shareDirs(cfg config.Config, log *slog.Logger) {
	for _, dir := range []string{cfg.Root, cfg.State} {
		if err := share(dir); err != nil {
			log.Warn("runtimes in mount namespaces of their own, such as Kata's, don't see the mounts of pods", "error", err)
		}
	}
}

func share(dir string) error {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	shared, err := sharedmount.Shared(dir)
	if err != nil || shared {
		return err
	}
	return sharedmount.Make(dir)
}

// unshareDirs undoes what shareDirs did, in this huskd or an earlier one. The caller has released
// the locks, whose files keep the mounts busy. The locks of a next huskd do so too if it uses the
// mounts.
func unshareDirs(cfg config.Config, log *slog.Logger) {
	for _, dir := range []string{cfg.State, cfg.Root} {
		dir, err := filepath.EvalSymlinks(dir)
		if err == nil {
			_, err = sharedmount.Release(dir)
		}
		if err != nil {
			log.Warn("a mount is left", "error", err)
		}
	}
}
