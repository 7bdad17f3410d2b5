package logs

import (
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Writes reports the next write to a file, once for each time that it is asked, so that its cost
// doesn't depend on how much is written.
type Writes struct {
	// C receives the paths of files that were written to or removed.
	C <-chan string

	inotify *os.File
	ended   chan struct{}
	reading sync.WaitGroup
	mu      sync.Mutex
	paths   map[int32]string // by watch descriptor
}

// OpenWrites returns a Writes, which the caller closes.
func OpenWrites() (*Writes, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch logs: %w", os.NewSyscallError("inotify_init1", err))
	}
	c := make(chan string)
	w := &Writes{C: c, inotify: os.NewFile(uintptr(fd), "inotify"), ended: make(chan struct{}), paths: map[int32]string{}}
	w.reading.Go(func() { w.read(c) })
	return w, nil
}

// Close ends the watching.
func (w *Writes) Close() {
	close(w.ended)
	_ = w.inotify.Close()
	w.reading.Wait()
}

// Ask makes C receive path when the file there is written to.
func (w *Writes) Ask(path string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	wd, err := unix.InotifyAddWatch(int(w.inotify.Fd()), path, unix.IN_MODIFY|unix.IN_ONESHOT)
	if err != nil {
		return &os.PathError{Op: "watch", Path: path, Err: err}
	}
	w.paths[int32(wd)] = path
	return nil
}

// read sends to c. A watch ends with IN_IGNORED, whether after its event or because the file is
// gone.
func (w *Writes) read(c chan<- string) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := w.inotify.Read(buffer)
		if err != nil {
			return
		}
		for at := 0; at+unix.SizeofInotifyEvent <= n; {
			event := (*unix.InotifyEvent)(unsafe.Pointer(&buffer[at]))
			at += unix.SizeofInotifyEvent + int(event.Len)
			if event.Mask&unix.IN_IGNORED == 0 {
				continue
			}
			w.mu.Lock()
			path, ok := w.paths[event.Wd]
			delete(w.paths, event.Wd)
			w.mu.Unlock()
			if !ok {
				continue
			}
			select {
			case c <- path:
			case <-w.ended:
				return
			}
		}
	}
}
