package volume

import (
	"io"
	"os"
	"path/filepath"
)

// maxMessage is the number of bytes that are read from the end of a message. It is kubelet's.
const maxMessage = 4096

// CreateMessageFile creates the file for the termination message of a run and returns its path.
func (v Volumes) CreateMessageFile(uid, run string) (string, error) {
	dirs, err := v.dirs(uid)
	if err != nil {
		return "", err
	}
	dir := dirs[len(dirs)-1]
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, run)
	if err := os.WriteFile(path, nil, 0o666); err != nil {
		return "", err
	}
	return path, os.Chmod(path, 0o666) // writable for any user of the container
}

// MessagePath returns the path of the file for the termination message of a run.
func (v Volumes) MessagePath(uid, run string) string {
	return filepath.Join(v.Root, "pods", uid, "messages", run)
}

// ReadMessage returns the termination message of a run, or "" if there is none.
func (v Volumes) ReadMessage(uid, run string) string {
	dirs, err := v.dirs(uid)
	if err != nil {
		return ""
	}
	f, err := os.Open(filepath.Join(dirs[len(dirs)-1], run))
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > maxMessage {
		_, _ = f.Seek(-maxMessage, io.SeekEnd)
	}
	text, _ := io.ReadAll(io.LimitReader(f, maxMessage)) // an error cuts the message short
	return string(text)
}
