package volume

import (
	"io"
	"os"
	"path/filepath"
)

// maxMessage is how much is read of one, as the kubelet has it.
const maxMessage = 4096

// CreateMessageFile makes the file in which a run of a container may leave a message of its
// end, and returns its path.
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
	return path, os.Chmod(path, 0o666) // whoever it runs as
}

// ReadMessage returns the message; empty if there is none.
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
	text, _ := io.ReadAll(io.LimitReader(f, maxMessage)) // as much as can be read
	return string(text)
}
