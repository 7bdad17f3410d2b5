package conmon

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/poll"
)

// ErrGone says that conmon has exited.
var ErrGone = errors.New("conmon has ended")

// Files that conmon makes in a container's bundle.
const (
	attachSocket = "attach"
	controlFIFO  = "ctl"
	sizeFIFO     = "winsz"
	oomFile      = "oom"
	// consolePattern matches the socket on which it receives a terminal.
	consolePattern = "conmon-term.*"
)

// RemoveFiles removes conmon's files from a bundle, which may not exist any more.
func RemoveFiles(bundle string) {
	files, _ := filepath.Glob(filepath.Join(bundle, consolePattern))
	for _, name := range []string{attachSocket, controlFIFO, sizeFIFO, oomFile} {
		files = append(files, filepath.Join(bundle, name))
	}
	for _, file := range files {
		_ = os.Remove(file)
	}
}

// messageLength is the size of conmon's reads from its FIFOs. If a read returns two messages,
// conmon handles the first one twice. So each message is padded to fill a read.
const messageLength = 199

// send writes a message into one of conmon's FIFOs.
func send(fifo, message string) error {
	f, err := os.OpenFile(fifo, os.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENOENT) {
		return ErrGone
	}
	if err != nil {
		return err
	}
	defer f.Close()
	padding := bytes.Repeat([]byte{' '}, messageLength-len(message)-1)
	_, err = f.Write(append(append(padding, message...), '\n'))
	return err
}

// Resize sets the size of a container's terminal.
func Resize(bundle string, size oci.Size) error {
	return send(filepath.Join(bundle, sizeFIFO), fmt.Sprintf("%d %d", size.Height, size.Width))
}

// ReopenLog makes conmon continue in a new file at the log's path, and returns when the file
// exists. It replaces an existing file.
func ReopenLog(ctx context.Context, bundle, log string) error {
	renames, err := watchRenames(filepath.Dir(log))
	if err != nil {
		return err
	}
	defer renames.Close()
	// conmon creates this file and renames it. If that fails, because the directory is missing or
	// the disk full, conmon exits, and the container with it. So the file is created here first.
	fresh := log + ".tmp"
	f, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_ = f.Close()
	const reopen = "2 0 0"
	if err := send(filepath.Join(bundle, controlFIFO), reopen); err != nil {
		_ = os.Remove(fresh)
		return err
	}
	name := filepath.Base(log)
	return poll.Until(ctx, renames, func(fd int) bool { return hasRename(fd, name) })
}

// watchRenames watches for files that are renamed into a directory.
func watchRenames(dir string) (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MOVED_TO); err != nil {
		_ = unix.Close(fd)
		return nil, &os.PathError{Op: "watch", Path: dir, Err: err}
	}
	return poll.New(fd, "inotify")
}

// hasRename reads all pending events and reports whether one is that of name.
func hasRename(fd int, name string) bool {
	const length = 12 // offset of struct inotify_event's len
	var buf [4096]byte
	for {
		n, err := unix.Read(fd, buf[:])
		if err != nil || n <= 0 {
			return false
		}
		for rest := buf[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(rest[length:]))
			if unix.ByteSliceToString(rest[unix.SizeofInotifyEvent:end]) == name {
				return true
			}
			rest = rest[end:]
		}
	}
}
