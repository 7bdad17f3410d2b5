// Package logind delays a poweroff or reboot through systemd-logind, so that pods can stop before
// systemd stops anything: org.freedesktop.login1(5) and systemd-inhibit(1).
package logind

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

const (
	service  = "org.freedesktop.login1"
	path     = dbus.ObjectPath("/org/freedesktop/login1")
	manager  = "org.freedesktop.login1.Manager"
	prepare  = "PrepareForShutdown"
	maxDelay = manager + ".InhibitDelayMaxUSec"
)

// Inhibitor delays shutdowns of the machine.
type Inhibitor struct {
	// Delay is how long Stop may take. If logind permits less, the inhibitor configures it to permit
	// that.
	Delay time.Duration
	// Stop is called when the machine begins to go down, which goes on when Stop returns.
	Stop func(context.Context)
	// ConfDir is logind's directory of drop-in files, which a reboot empties.
	ConfDir string
	Log     *slog.Logger
}

// ErrCancelled is the error of Run if the shutdown was cancelled after Stop.
var ErrCancelled = errors.New("the machine doesn't go down after all: huskd must be restarted to run its pods again")

// ConfDir is the directory in which logind looks for drop-in files of this boot.
const ConfDir = "/run/systemd/logind.conf.d"

const (
	confName = "90-husk.conf"
	// reconnectTime is how long to wait after the connection to logind is lost.
	reconnectTime = 5 * time.Second
	// applyTime is how long logind may take to apply its new configuration.
	applyTime = 5 * time.Second
)

// Run delays shutdowns until ctx ends or a shutdown is cancelled. On a machine without a system bus
// or logind it returns at once.
func (i Inhibitor) Run(ctx context.Context) error {
	for last := ""; ; {
		err := i.follow(ctx)
		var refused dbus.Error
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrCancelled):
			return err
		case errors.Is(err, os.ErrNotExist), errors.As(err, &refused) && refused.Name == "org.freedesktop.DBus.Error.ServiceUnknown":
			i.Log.Debug("a shutdown isn't delayed: systemd-logind doesn't run", "error", err)
			return nil
		}
		if text := err.Error(); text != last {
			i.Log.Warn("a shutdown isn't delayed until the connection to systemd-logind is back", "error", err)
			last = text
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reconnectTime):
		}
	}
}

// follow holds an inhibitor lock and follows logind's signals until the connection is lost.
func (i Inhibitor) follow(ctx context.Context) error {
	bus, err := dbus.Connect(cmp.Or(os.Getenv("DBUS_SYSTEM_BUS_ADDRESS"), "unix:path=/run/dbus/system_bus_socket"), dbus.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("connect to the system bus: %w", err)
	}
	defer bus.Close()
	if err := i.permit(ctx, bus); err != nil {
		return err
	}
	if err := bus.AddMatchSignalContext(ctx, dbus.WithMatchInterface(manager), dbus.WithMatchMember(prepare)); err != nil {
		return fmt.Errorf("follow systemd-logind: %w", err)
	}
	signals := make(chan *dbus.Signal, 10)
	bus.Signal(signals)
	release, err := inhibit(ctx, bus)
	if err != nil {
		return err
	}
	defer release()
	stopped := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case s, ok := <-signals:
			if !ok {
				return errors.New("the connection to systemd-logind is lost")
			}
			begins := false
			switch {
			case s.Name != manager+"."+prepare || dbus.Store(s.Body, &begins) != nil:
			case begins && !stopped:
				i.Log.Info("the machine goes down: stopping all pods")
				i.Stop(ctx)
				stopped = true
				release()
			case !begins && stopped:
				return ErrCancelled
			}
		}
	}
}

// inhibit takes a lock that delays shutdowns until it is released, which may be done twice.
func inhibit(ctx context.Context, bus *dbus.Conn) (release func(), err error) {
	var fd dbus.UnixFD
	err = bus.Object(service, path).CallWithContext(ctx, manager+".Inhibit", 0, "shutdown", "huskd", "pods are being stopped", "delay").Store(&fd)
	if err != nil {
		return nil, fmt.Errorf("take an inhibitor lock: %w", err)
	}
	unix.CloseOnExec(int(fd)) // a container's monitor must not hold it
	return sync.OnceFunc(func() { _ = unix.Close(int(fd)) }), nil
}

// permit makes logind permit the delay. If that fails, shutdowns are delayed by less.
func (i Inhibitor) permit(ctx context.Context, bus *dbus.Conn) error {
	permitted, err := delay(bus)
	if err != nil {
		return fmt.Errorf("read systemd-logind's InhibitDelayMaxSec: %w", err)
	}
	if permitted >= i.Delay {
		return nil
	}
	if err := os.MkdirAll(i.ConfDir, 0o755); err != nil {
		return err
	}
	content := fmt.Sprintf("# Written by huskd, for shutdown-grace-period.\n[Login]\nInhibitDelayMaxSec=%d\n", int(i.Delay.Seconds()))
	if err := os.WriteFile(filepath.Join(i.ConfDir, confName), []byte(content), 0o644); err != nil {
		return err
	}
	// logind reads its configuration again on SIGHUP.
	systemd := bus.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
	err = systemd.CallWithContext(ctx, "org.freedesktop.systemd1.Manager.KillUnit", 0, "systemd-logind.service", "main", int32(unix.SIGHUP)).Err
	for end := time.Now().Add(applyTime); err == nil && permitted < i.Delay && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		permitted, err = delay(bus)
	}
	if err != nil || permitted < i.Delay {
		i.Log.Warn("pods have less time to stop at a shutdown than shutdown-grace-period: set InhibitDelayMaxSec in logind.conf(5)", "permitted", permitted, "error", err)
	}
	return nil
}

// delay returns for how long logind permits to delay a shutdown.
func delay(bus *dbus.Conn) (time.Duration, error) {
	value, err := bus.Object(service, path).GetProperty(maxDelay)
	if err != nil {
		return 0, err
	}
	us, ok := value.Value().(uint64)
	if !ok {
		return 0, fmt.Errorf("%v is not a number", value)
	}
	return time.Duration(us) * time.Microsecond, nil
}
