package simulation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

const ready = sandboxstate.Ready

// errDead is the error of drivers after the end of a life.
var errDead = errors.New("this huskd is dead")

// life is one run of huskd, from its start to its end. Goroutines that outlive it have no effect.
type life struct {
	m          *machine
	dir        string
	died       chan struct{} // closed at its end
	journal    *journal.Journal
	sandboxes  *sandbox.Service
	containers *container.Service
	holds      int // how often the image is held
}

func (l *life) over() bool {
	select {
	case <-l.died:
		return true
	default:
		return false
	}
}

// instance is the same for all lives, although their directories differ.
const instance = pod.Instance("5eed")

// start starts a huskd, as package daemon does.
func (m *machine) start() (*life, error) {
	m.mu.Lock()
	m.lives++
	l := &life{m: m, dir: m.dirOf(m.lives), died: make(chan struct{})}
	former := m.dirOf(m.lives - 1)
	boot := fmt.Sprint("boot-", m.boot)
	m.mu.Unlock()
	// Goroutines of the former life must not find their files.
	if err := os.Rename(former, l.dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, dir := range []string{l.root(), l.state()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	var err error
	if l.journal, _, err = journal.OpenOn(m.disk.Mount()); err != nil {
		return nil, fmt.Errorf("the journal can't be opened: %w", err)
	}
	log := slog.New(slog.DiscardHandler)
	facts := host.Facts{BootID: boot, CPUs: 2, Seccomp: true, Overlay: true}
	l.containers = container.New(container.Config{
		Root: l.root(), State: l.state(), Journal: l.journal, Runtime: runtime{l}, Images: images{l}, Mounts: mounts{l},
		Sandboxes: sandboxes{l}, Host: facts, Log: log,
		Changed: func(st container.Status) {
			m.setName(st.ID, fmt.Sprintf("%s/%s.%d", m.name(st.Sandbox), st.Name(), st.Config.GetMetadata().GetAttempt()))
			l.trace(st.ID, string(st.State))
		},
	})
	l.sandboxes = sandbox.New(sandbox.Config{
		Instance: instance, State: l.state(), Journal: l.journal, Network: network{l}, Containers: l.containers, Infra: infraDriver{l}, Kernel: kernel{l},
		Handlers: handlers{}, Cgroups: cgroups{l}, Host: facts, Log: log,
		Changed: func(st sandbox.Status) {
			m.setName(st.ID, fmt.Sprintf("%s.%d", st.Ref().Name, st.Config.GetMetadata().GetAttempt()))
			l.trace(st.ID, string(st.State))
		},
	})
	return l, l.resume()
}

// trace notes a change of state.
func (l *life) trace(id, state string) {
	if l.m.tracing && !l.over() {
		l.m.note("  %s is %s", l.m.name(id), state)
	}
}

func (l *life) root() string  { return filepath.Join(l.dir, "root") }
func (l *life) state() string { return filepath.Join(l.dir, "state") }

func (l *life) resume() error {
	bad := append(l.sandboxes.Load(), l.containers.Load()...)
	if len(bad) > 0 && !l.m.recordsLost { // a power loss may leave a record without its config
		return fmt.Errorf("records were set aside: %w", errors.Join(bad...))
	}
	for _, err := range bad {
		l.m.note("  %v", err)
	}
	if err := l.m.reconcile(l.sandboxes.Attachments()); err != nil && !l.m.everLost {
		return err
	}
	l.m.recordsLost = false
	return errors.Join(l.ignoreFaults(l.containers.Resume(context.Background())), l.ignoreFaults(l.sandboxes.Resume()))
}

// ignoreFaults returns nil instead of an error that the machine has caused.
func (l *life) ignoreFaults(err error) error {
	if err != nil && (errors.Is(err, errFault) || errors.Is(err, context.DeadlineExceeded) || l.over()) {
		l.m.unswept = true
		return nil
	}
	return err
}

// closeTime is how long huskd waits for work in flight when it ends.
const closeTime = 5 * time.Second

// shutDown ends huskd as SIGTERM does.
func (l *life) shutDown() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		l.close()
	}()
	select {
	case <-closed:
	case <-time.After(closeTime):
	}
	l.kill()
}

func (l *life) close() {
	l.sandboxes.Close()
	l.containers.Close()
}

// kill ends huskd at once.
func (l *life) kill() {
	l.m.mu.Lock()
	if !l.over() {
		close(l.died)
	}
	l.m.mu.Unlock()
	l.m.disk.Kill()
}

// cutPower ends everything at once and boots again.
func (l *life) cutPower() error {
	l.kill()
	m := l.m
	m.mu.Lock()
	r := m.chance(fmt.Sprint("power ", m.boot))
	m.mu.Unlock()
	m.disk.Cut(r)
	m.recordsLost, m.everLost = true, true
	m.bootUp()
	return os.RemoveAll(l.state())
}
