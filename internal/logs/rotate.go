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

// Rotation bounds the log of a container: at MaxSize bytes it is moved away and
// begun anew, and there are at most MaxFiles of it, the present one among them.
// All that are moved away but the last are compressed.
type Rotation struct {
	MaxSize  int64
	MaxFiles int
}

// stamp is what the kubelet adds to the name of a log that is moved away, so that
// they sort by their time.
const stampLayout = "20060102-150405"

var stampForm = regexp.MustCompile(`^\.[0-9]{8}-[0-9]{6}(\.gz)?$`)

const compressed = ".gz"

// rotatedPaths returns the files of the log at path that were moved away, the oldest
// first.
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

// Remove removes a log with all its parts.
func Remove(path string) error {
	old, err := rotatedPaths(path)
	for _, file := range append(old, path, path+tmpSuffix) {
		if rmErr := os.Remove(file); !errors.Is(rmErr, fs.ErrNotExist) {
			err = errors.Join(err, rmErr)
		}
	}
	return err
}

// Rotate rotates the log at path if it has grown too large. Reopen has whoever
// writes it begin a new file at the path, and returns when that is so. Not a line
// is lost: until then it is the one that was moved away which is written to.
func (r Rotation) Rotate(path string, now time.Time, reopen func() error) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		// It was moved away, and then something went wrong.
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
	for len(old) > 0 && len(old) > r.MaxFiles-2 {
		if err := os.Remove(old[0]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("log: %w", err)
		}
		old = old[1:]
	}
	for _, file := range old {
		if !strings.HasSuffix(file, compressed) {
			if err := compress(file); err != nil {
				return fmt.Errorf("log %s: compress: %w", file, err)
			}
		}
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

// nextStamp is that of now, or what comes right after the last one: the clock may
// have been set back.
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

// tmpSuffix ends the names of files in the making.
const tmpSuffix = ".tmp"

// compress puts a compressed file in the place of a file. A crash leaves one of
// them whole.
func compress(path string) (err error) {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	making := path + tmpSuffix
	out, err := os.OpenFile(making, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(making)
		}
	}()
	z := gzip.NewWriter(out)
	_, err = io.Copy(z, in)
	if err = errors.Join(err, z.Close(), out.Close()); err != nil {
		return err
	}
	if err := os.Rename(making, path+compressed); err != nil {
		return err
	}
	return os.Remove(path)
}
