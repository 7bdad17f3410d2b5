package logind

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/hosttest"
)

// fakeLogind is the part of logind and systemd that the inhibitor uses, on a bus of its own. The
// real ones run in test/install.
type fakeLogind struct {
	t     *testing.T
	bus   *dbus.Conn
	props *prop.Properties
	locks chan *os.File // the reading end of each lock: at EOF when that is released
	conf  string
	hups  sync.WaitGroup
}

func (f *fakeLogind) Inhibit(what, _, _, mode string) (dbus.UnixFD, *dbus.Error) {
	if what != "shutdown" || mode != "delay" {
		f.t.Errorf("Inhibit(%s, %s)", what, mode)
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		f.t.Error(err)
	}
	f.locks <- os.NewFile(uintptr(pipe[0]), "lock")
	// The bus sends a copy: ours must be closed for the reader to see the end.
	f.hups.Go(func() {
		time.Sleep(time.Second)
		_ = unix.Close(pipe[1])
	})
	return dbus.UnixFD(pipe[1]), nil
}

// KillUnit is systemd's: logind reads its configuration.
func (f *fakeLogind) KillUnit(unit, who string, signal int32) *dbus.Error {
	data, err := os.ReadFile(filepath.Join(f.conf, confName))
	if unit != "systemd-logind.service" || who != "main" || signal != int32(unix.SIGHUP) || err != nil || !strings.Contains(string(data), "\n[Login]\nInhibitDelayMaxSec=40\n") {
		f.t.Errorf("KillUnit(%s, %s, %d) with %q, %v", unit, who, signal, data, err)
	}
	f.props.SetMust(manager, "InhibitDelayMaxUSec", uint64(40e6))
	return nil
}

func (f *fakeLogind) prepares(begins bool) {
	f.t.Helper()
	if err := f.bus.Emit(path, manager+"."+prepare, begins); err != nil {
		f.t.Fatal(err)
	}
}

func startLogind(t *testing.T) *fakeLogind {
	t.Helper()
	hosttest.Root(t)
	daemon := exec.Command("dbus-daemon", "--session", "--nofork", "--print-address", "--address=unix:path="+filepath.Join(t.TempDir(), "bus"))
	out, err := daemon.StdoutPipe()
	if err == nil {
		err = daemon.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
	})
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", strings.TrimSpace(address))
	f := &fakeLogind{t: t, locks: make(chan *os.File, 10), conf: filepath.Join(t.TempDir(), "logind.conf.d")}
	t.Cleanup(f.hups.Wait)
	if f.bus, err = dbus.ConnectSystemBus(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.bus.Close() })
	f.props, err = prop.Export(f.bus, path, prop.Map{manager: {"InhibitDelayMaxUSec": {Value: uint64(5e6)}}})
	for _, o := range []struct {
		path dbus.ObjectPath
		name string
	}{{path, manager}, {"/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"}} {
		if err == nil {
			err = f.bus.Export(f, o.path, o.name)
		}
		if err == nil {
			_, err = f.bus.RequestName(strings.TrimSuffix(o.name, ".Manager"), 0)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// held returns a lock once the inhibitor has taken it, and released waits until it is released.
func (f *fakeLogind) held() *os.File {
	f.t.Helper()
	select {
	case lock := <-f.locks:
		return lock
	case <-time.After(20 * time.Second):
		f.t.Fatal("no inhibitor lock is taken")
		return nil
	}
}

func released(t *testing.T, lock *os.File) {
	t.Helper()
	defer lock.Close()
	_ = lock.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := lock.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Errorf("the inhibitor lock is not released: %v", err)
	}
}

func TestInhibitor(t *testing.T) {
	f := startLogind(t)
	stopped := make(chan bool, 10)
	i := Inhibitor{
		Delay: 40 * time.Second, ConfDir: f.conf, Log: slog.Default(),
		Stop: func(context.Context) { stopped <- true },
	}
	done := make(chan error, 1)
	go func() { done <- i.Run(t.Context()) }()
	lock := f.held()
	f.prepares(false) // that of another shutdown
	f.prepares(true)
	select {
	case <-stopped:
	case <-time.After(20 * time.Second):
		t.Fatal("the pods are not stopped")
	}
	released(t, lock)
	f.prepares(false)
	if err := <-done; !errors.Is(err, ErrCancelled) {
		t.Error(err)
	}
}

// TestNoLogind checks that a machine without a bus, or without logind, is no error.
func TestNoLogind(t *testing.T) {
	f := startLogind(t)
	i := Inhibitor{Delay: time.Second, Log: slog.Default()}
	if _, err := f.bus.ReleaseName(service); err != nil {
		t.Fatal(err)
	}
	if err := i.Run(t.Context()); err != nil {
		t.Error(err)
	}
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+filepath.Join(t.TempDir(), "bus"))
	if err := i.Run(t.Context()); err != nil {
		t.Error(err)
	}
}
