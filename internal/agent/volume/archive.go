package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/projectquota"
)

// claimNew is the directory of files that are being imported.
const claimNew = "data.new"

// Export writes a tar archive of a claim's files. Pods may write meanwhile.
func (v Volumes) Export(ctx context.Context, namespace, name string, to io.Writer) error {
	dir, err := v.existing(namespace, name)
	if err != nil {
		return err
	}
	path, err := filepath.EvalSymlinks(filepath.Join(dir, claimData))
	if err != nil {
		return fmt.Errorf("claim %s/%s has no files: %w", namespace, name, err)
	}
	return archive(ctx, nil, to, "-C", path, "-c", "-f", "-", ".")
}

// Import makes the files of a tar archive those of a claim, in place of what it has. The claim is
// made if there is none. It refuses while a pod uses the claim, and changes nothing if it fails.
func (v Volumes) Import(ctx context.Context, namespace, name string, from io.Reader) (err error) {
	dir, err := v.claimDir(namespace, name)
	if err != nil {
		return err
	}
	path, fresh := filepath.Join(dir, claimData), filepath.Join(dir, claimNew)
	if err := importable(dir, namespace, name); err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(v.claims(), 0o700), os.RemoveAll(fresh), os.MkdirAll(filepath.Dir(fresh), 0o755), os.Mkdir(fresh, 0o777)); err != nil {
		return fmt.Errorf("import into claim %s/%s: %w", namespace, name, err)
	}
	defer func() { err = errors.Join(err, unlimit(fresh), os.RemoveAll(fresh), removeEmptyClaim(dir)) }()
	declared, err := v.declaration(dir, nil)
	if err == nil {
		err = limit(fresh, declared.Size)
	}
	if err != nil {
		return fmt.Errorf("import into claim %s/%s: %w", namespace, name, err)
	}
	if err := archive(ctx, from, io.Discard, "-C", fresh, "-x", "-p", "--same-owner", "-f", "-"); err != nil {
		return fmt.Errorf("import into claim %s/%s: %w", namespace, name, err)
	}
	// The kernel doesn't limit root.
	if u, err := projectquota.Get(fresh); err == nil && u.Limit > 0 && u.Used > u.Limit {
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("the files of the archive take %d bytes, and the size of claim %s/%s is %s: declare a larger one",
			u.Used, namespace, name, &declared.Size))
	}
	return adopt(fresh, path, namespace, name)
}

// adopt makes the imported files those of a claim.
func adopt(fresh, path, namespace, name string) (err error) {
	using.Lock()
	defer using.Unlock()
	if err := importable(filepath.Dir(path), namespace, name); err != nil {
		return err
	}
	if err = unix.Renameat2(unix.AT_FDCWD, fresh, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE); errors.Is(err, fs.ErrNotExist) {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		return fmt.Errorf("import into claim %s/%s: %w", namespace, name, err)
	}
	return nil
}

// removeEmptyClaim removes the directory of a claim, and that of its namespace, if they hold
// nothing: the claim was made for an import that failed.
func removeEmptyClaim(dir string) error {
	using.Lock()
	defer using.Unlock()
	for _, path := range []string{dir, filepath.Dir(dir)} {
		if err := unix.Rmdir(path); err != nil && !errors.Is(err, unix.ENOTEMPTY) {
			return &os.PathError{Op: "rmdir", Path: path, Err: err}
		} else if err != nil {
			return nil
		}
	}
	return nil
}

// importable returns an error if the files of a claim can't be replaced.
func importable(dir, namespace, name string) error {
	other, err := otherUser(filepath.Join(dir, claimPods), "", false)
	if other != "" {
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("claim %s/%s is used by pod %s: stop and remove the pod first", namespace, name, other))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if info, err := os.Lstat(filepath.Join(dir, claimData)); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("the files of claim %s/%s are those of a PersistentVolume: change them there", namespace, name))
	}
	return nil
}

// archive runs tar.
func archive(ctx context.Context, from io.Reader, to io.Writer, args ...string) error {
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, "tar", append([]string{"--numeric-owner", "--xattrs", "--xattrs-include=*"}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = from, to, &said
	err := cmd.Run()
	if text, _, _ := strings.Cut(strings.TrimSpace(said.String()), "\n"); err != nil && text != "" {
		err = errors.New(text)
	}
	return err
}

// claimDir returns the directory of a claim, which may not exist.
func (v Volumes) claimDir(namespace, name string) (string, error) {
	if strings.ContainsAny(namespace+name, "/\x00") || name == "" || namespace == "" || strings.HasPrefix(name, ".") || strings.HasPrefix(namespace, ".") {
		return "", errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("%q is not the name of a claim", namespace+"/"+name))
	}
	return filepath.Join(v.claims(), namespace, name), nil
}

// existing returns the directory of a claim.
func (v Volumes) existing(namespace, name string) (string, error) {
	dir, err := v.claimDir(namespace, name)
	if err != nil {
		return "", err
	}
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return "", errdefs.ErrNotFound.WithMessage(fmt.Sprintf("no claim %s/%s: husk volume ls lists them", namespace, name))
	}
	return dir, nil
}

// Used returns the bytes that the files below path take on disk. Files that go meanwhile don't
// count.
func Used(path string) (bytes int64, err error) {
	seen := map[[2]uint64]bool{} // hard links count once
	err = filepath.WalkDir(path, func(_ string, e fs.DirEntry, err error) error {
		if err == nil {
			var info fs.FileInfo
			if info, err = e.Info(); err == nil {
				st, ok := info.Sys().(*syscall.Stat_t)
				if key := [2]uint64{st.Dev, st.Ino}; ok && !seen[key] {
					seen[key] = true
					bytes += st.Blocks * 512
				}
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	return bytes, err
}
