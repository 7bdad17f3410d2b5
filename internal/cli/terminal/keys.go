package terminal

import (
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// CtrlZ is the key that suspends a program.
const CtrlZ = 0x1a

// Keys puts the terminal f into a mode in which keys arrive one by one and aren't echoed, until
// Restore. Ctrl-c still sends its signal. Ctrl-z is the key CtrlZ, at which the caller calls
// Suspend. The channel receives the keys. It is nil if f is not a terminal or if this process runs
// in its background, where a read would stop it.
func Keys(f *os.File) <-chan byte {
	if !single(f) {
		return nil
	}
	keys := make(chan byte)
	go func() { // blocked in its read when the command ends; the process is over then
		defer Guard()
		key := make([]byte, 1)
		for {
			if n, err := f.Read(key); n == 0 || err != nil {
				return
			}
			keys <- key[0]
		}
	}()
	return keys
}

// single sets the mode of Keys and reports whether it did.
func single(f *os.File) bool {
	fd := int(f.Fd())
	if group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); err != nil || group != unix.Getpgrp() {
		return false
	}
	changed.Lock()
	defer changed.Unlock()
	state, err := term.GetState(fd)
	if err != nil {
		return false
	}
	modes, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return false
	}
	remember(fd, state)
	modes.Lflag &^= unix.ICANON | unix.ECHO
	modes.Cc[unix.VMIN], modes.Cc[unix.VTIME] = 1, 0
	modes.Cc[unix.VSUSP] = 0 // ctrl-z is a key
	return unix.IoctlSetTermios(fd, unix.TCSETS, modes) == nil
}

// Suspend restores the terminal f, whose keys Keys reads, stops the foreground processes as ctrl-z
// does, and sets the mode again when this process continues. The kernel doesn't stop processes
// that no shell could continue.
func Suspend(f *os.File) {
	Restore()
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, unix.SIGCONT)
	defer signal.Stop(continued)
	// Nothing may ask for SIGTSTP itself: the Go runtime then never restores its default action.
	_ = unix.Kill(0, unix.SIGTSTP)
	select {
	case <-continued:
	case <-time.After(time.Second): // it wasn't stopped
	}
	single(f)
}
