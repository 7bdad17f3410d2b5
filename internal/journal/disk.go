package journal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Disk is the directory of a journal. Tests use a simulated one that can lose power.
type Disk interface {
	// Open opens a file for reading and writing and creates it if it doesn't exist. It fails while the
	// file is open already.
	Open(name string) (File, error)
	Rename(from, to string) error
	Remove(name string) error
	// Sync makes the names of files survive a power loss.
	Sync() error
	// String returns the directory's path.
	String() string
}

// File is an open file of a Disk.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Truncate(size int64) error
	// Allocate reserves disk space without changing the file's size.
	Allocate(offset, size int64) error
	// Sync makes the content survive a power loss.
	Sync() error
}

// directory is a Disk that is a real directory, by its path.
type directory string

func (d directory) String() string { return string(d) }

func (d directory) path(name string) string { return filepath.Join(string(d), name) }

func (d directory) Open(name string) (File, error) {
	f, err := os.OpenFile(d.path(name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lock(f); err != nil {
		return nil, errors.Join(fmt.Errorf("%s is in use by another process: %w", d.path(name), err), f.Close())
	}
	return file{f}, nil
}

// lockTime is how long to wait for the lock. A child that a dead owner was forking holds its files,
// and so its lock, until it executes.
const lockTime = time.Second

func lock(f *os.File) error {
	for late := time.Now().Add(lockTime); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(late) {
			return err
		}
	}
}

func (d directory) Rename(from, to string) error { return os.Rename(d.path(from), d.path(to)) }

func (d directory) Remove(name string) error { return os.Remove(d.path(name)) }

func (d directory) Sync() error {
	f, err := os.Open(string(d))
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

type file struct{ *os.File }

func (f file) Allocate(offset, size int64) error {
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, offset, size)
}

func (f file) Sync() error { return unix.Fdatasync(int(f.Fd())) }
