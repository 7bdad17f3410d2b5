package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// busyLimit bounds the time that rmdir may fail with EBUSY after the last process exited.
const busyLimit = 5 * time.Second

// Remove kills what runs in the cgroup and below and removes it from every hierarchy. A cgroup that
// doesn't exist is fine.
func (t *Tree) Remove(ctx context.Context, cgroup string) error {
	if err := t.owns(cgroup); err != nil {
		return err
	}
	if err := t.Kill(ctx, cgroup); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, busyLimit)
	defer cancel()
	for _, mount := range t.mounts {
		var all []string
		if err := walk(filepath.Join(mount, cgroup), func(sub string) error { all = append(all, sub); return nil }); err != nil {
			return fmt.Errorf("remove cgroup %s: %w", cgroup, err)
		}
		for _, sub := range slices.Backward(all) {
			if err := rmdir(ctx, sub); err != nil {
				return fmt.Errorf("remove cgroup %s: %w", cgroup, err)
			}
		}
	}
	return nil
}

// rmdir retries while the cgroup is busy. An exited process leaves its cgroup a little after its
// parent can reap it, and nothing reports when.
func rmdir(ctx context.Context, dir string) error {
	for pause := 500 * time.Microsecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := unix.Rmdir(dir)
		switch {
		case err == nil, errors.Is(err, unix.ENOENT):
			return nil
		case !errors.Is(err, unix.EBUSY):
			return &os.PathError{Op: "rmdir", Path: dir, Err: err}
		}
		select {
		case <-ctx.Done():
			return &os.PathError{Op: "rmdir", Path: dir, Err: err}
		case <-time.After(pause):
		}
	}
}
