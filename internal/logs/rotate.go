package logs

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Rotation bounds the size of a container's log. At MaxSize bytes its file is renamed and a new one
// begins. There are at most MaxFiles files, including the current one.
type Rotation struct {
	MaxSize  int64
	MaxFiles int
}

// stampLayout is the layout of the time that is appended to the names of rotated files. It is
// kubelet's, and sorts by time.
const stampLayout = "20060102-150405"

var stampForm = regexp.MustCompile(`^\.[0-9]{8}-[0-9]{6}(\.gz)?$`)

const compressed = ".gz"

// rotatedPaths returns the rotated files of the log at path, the oldest first.
func rotatedPaths(path string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries { // sorted by name
		if rest, ok := strings.CutPrefix(e.Name(), filepath.Base(path)); ok && stampForm.MatchString(rest) {
			out = append(out, filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
	return out, nil
}

// Remove removes a log and all its rotated files.
func Remove(path string) error {
	old, err := rotatedPaths(path)
	for _, file := range append(old, path, path+tmpSuffix) {
		if rmErr := os.Remove(file); !errors.Is(rmErr, fs.ErrNotExist) {
			err = errors.Join(err, rmErr)
		}
	}
	return err
}

// Rotate rotates the log at path if it has grown too large. reopen makes the writer begin a new
// file at path, and returns once it has. Until then the writer continues with the renamed file, so
// that no line is lost.
func (r Rotation) Rotate(path string, now time.Time, reopen func() error) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		// An earlier rotation failed after the rename.
		return reopen()
	}
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	if info.Size() < r.MaxSize {
		return nil
	}
	old, err := rotatedPaths(path)
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	// Compress may have made a file's compressed copy already, and not removed the file yet.
	old = slices.CompactFunc(old, func(a, b string) bool { return a+compressed == b })
	for len(old) > 0 && len(old) > r.MaxFiles-2 {
		file := strings.TrimSuffix(old[0], compressed)
		for _, name := range []string{file, file + compressed, file + tmpSuffix} {
			if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("log: %w", err)
			}
		}
		old = old[1:]
	}
	to := path + "." + nextStamp(path, old, now)
	if err := os.Rename(path, to); err != nil {
		return fmt.Errorf("log: %w", err)
	}
	if err := reopen(); err != nil {
		if _, gone := os.Stat(path); errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, os.Rename(to, path))
		}
		return fmt.Errorf("log %s: %w", path, err)
	}
	if r.MaxFiles < 2 {
		return os.Remove(to)
	}
	return nil
}

// Compress compresses the rotated files of the log at path except the newest. It may run while the
// log is rotated.
func Compress(path string) error {
	old, err := rotatedPaths(path)
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	for _, file := range old[:max(0, len(old)-1)] {
		if strings.HasSuffix(file, compressed) {
			continue
		}
		if err := compress(file); err != nil && !errors.Is(err, fs.ErrNotExist) { // a rotation has removed it
			return fmt.Errorf("log %s: compress: %w", file, err)
		}
	}
	return nil
}

// nextStamp returns the stamp of now. If the clock was set back, it returns the stamp one second
// after the last one.
func nextStamp(path string, old []string, now time.Time) string {
	stamp := now.UTC().Format(stampLayout)
	if len(old) == 0 {
		return stamp
	}
	last := strings.TrimSuffix(strings.TrimPrefix(slices.Max(old), path+"."), compressed)
	if stamp > last {
		return stamp
	}
	at, err := time.Parse(stampLayout, last)
	if err != nil {
		return stamp
	}
	return at.Add(time.Second).Format(stampLayout)
}

// tmpSuffix ends the names of incomplete files.
const tmpSuffix = ".tmp"

// compress replaces a file by a compressed one. After a crash at least one of them is complete. It
// leaves neither if a rotation removes the file meanwhile.
func compress(path string) (err error) {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	tmp := path + tmpSuffix
	out, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp)
		}
	}()
	z := gzip.NewWriter(out)
	_, err = io.Copy(z, in)
	if err = errors.Join(err, z.Close(), out.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, path+compressed); err != nil {
		return err
	}
	err = os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		_ = os.Remove(path + compressed)
	}
	return err
}
