package daemonless

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// All locks are byte ranges of one file, so the kernel drops them with the process. They are open
// file description locks, which also exclude goroutines of the same process. The network's lock is
// taken first and the store's last.
const (
	networkByte = 0 // locked shared for work on a single sandbox
	sandboxes   = 2 // the first byte for sandboxes
	storeByte   = 1
)

// scope is what a lock protects: a sandbox, by its ID, or one of the constants below.
type scope string

const (
	networkShared    scope = ""
	networkExclusive scope = "*"
)

// locked holds locks on a network, or on one sandbox of it.
type locked struct {
	n    *Network
	ctx  context.Context
	file *os.File
	// abandoned means that a goroutine still waits for a lock, and will close the file.
	abandoned bool
}

// lock waits until it can lock a scope.
func (n *Network) lock(ctx context.Context, s scope) (*locked, error) {
	if err := os.MkdirAll(n.cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(n.cfg.Dir, "lock"), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	l := &locked{n: n, ctx: ctx, file: file}
	kind := int16(unix.F_RDLCK)
	if s == networkExclusive {
		kind = unix.F_WRLCK
	}
	err = l.take(kind, networkByte)
	if err == nil && s != networkShared && s != networkExclusive {
		err = l.take(unix.F_WRLCK, sandboxByte(string(s)))
	}
	if err != nil {
		l.release()
		return nil, err
	}
	return l, nil
}

// sandboxByte returns the offset that stands for a sandbox. Two sandboxes may share one, and then
// wait for each other.
func sandboxByte(id string) int64 {
	raw, err := hex.DecodeString(id[:min(len(id), 16)])
	if err != nil || len(raw) < 8 {
		return sandboxes
	}
	return sandboxes + int64(binary.BigEndian.Uint64(raw)>>2)
}

// take waits for a lock. If the context ends first, the file stays open until the kernel has
// granted the lock.
func (l *locked) take(kind int16, at int64) error {
	lock := unix.Flock_t{Type: kind, Start: at, Len: 1}
	if err := unix.FcntlFlock(l.file.Fd(), unix.F_OFD_SETLK, &lock); err == nil {
		return nil
	}
	done := make(chan error, 1)
	go func() {
		lock := unix.Flock_t{Type: kind, Start: at, Len: 1}
		for {
			err := unix.FcntlFlock(l.file.Fd(), unix.F_OFD_SETLKW, &lock)
			if !errors.Is(err, unix.EINTR) {
				done <- err
				return
			}
		}
	}()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("network: lock %s: %w", l.file.Name(), err)
		}
		return nil
	case <-l.ctx.Done():
		l.abandoned = true
		go func() {
			<-done
			_ = l.file.Close()
		}()
		return fmt.Errorf("network: wait for lock %s: %w", l.file.Name(), l.ctx.Err())
	}
}

// tryLock locks another sandbox if no other call has locked it.
func (l *locked) tryLock(sandbox string) bool {
	return unix.FcntlFlock(l.file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: sandboxByte(sandbox), Len: 1}) == nil
}

func (l *locked) drop(at int64) {
	_ = unix.FcntlFlock(l.file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK, Start: at, Len: 1})
}

// release releases all locks.
func (l *locked) release() {
	if !l.abandoned {
		_ = l.file.Close()
	}
}
