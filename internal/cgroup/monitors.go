package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/huskd/husk/internal/host"
)

// OpenMonitors creates the cgroup for the monitors of containers and all else that outlives this
// process, and returns its directory, as clone3(2) takes it. In the cgroup of huskd's unit, systemd
// would take them for what a failed stop has left, and "systemctl kill" would hit them.
//
// On a v1 host it returns nil: processes can't be created in a cgroup there.
func OpenMonitors(c host.Cgroup, path string) (*os.File, error) {
	if !c.Mode.Unified() {
		return nil, nil
	}
	dir := filepath.Join(c.Mounts[""], path)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("cgroup of the processes that outlive huskd: %w", err)
	}
	return os.Open(dir)
}

// CloseMonitors closes the directory that OpenMonitors returned, and removes the cgroup unless a
// process is in it.
func CloseMonitors(dir *os.File) error {
	if dir == nil {
		return nil
	}
	defer dir.Close()
	if procs, err := os.ReadFile(filepath.Join(dir.Name(), "cgroup.procs")); err != nil || len(procs) > 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), busyLimit)
	defer cancel()
	return rmdir(ctx, dir.Name())
}
