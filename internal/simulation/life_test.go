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

// errDead is what the dead are told.
var errDead = errors.New("this huskd is dead")

// life is one of huskd's, from its start to its end. What is left of its
// goroutines after that has no effect.
type life struct {
	m          *machine
	dir        string
	died       chan struct{} // closed at its end
	journal    *journal.Journal
	sandboxes  *sandbox.Service
	containers *container.Service
	holds      int // of the image
}

func (l *life) over() bool {
	select {
	case <-l.died:
		return true
	default:
		return false
	}
}

// instance is the node's, whatever the directory of a life.
const instance = pod.Instance("5eed")

// begin starts a huskd, as package daemon does.
func (m *machine) begin() (*life, error) {
	m.mu.Lock()
	m.lives++
	l := &life{m: m, dir: m.dirOf(m.lives), died: make(chan struct{})}
	former := m.dirOf(m.lives - 1)
	boot := fmt.Sprint("boot-", m.boot)
	m.mu.Unlock()
	// The dead must not find their files.
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
		return nil, fmt.Errorf("the journal doesn't open: %w", err)
	}
	log := slog.New(slog.DiscardHandler)
	facts := host.Facts{BootID: boot, CPUs: 2, Seccomp: true, Overlay: true}
	l.containers = container.New(container.Config{
		Root: l.root(), State: l.state(), Journal: l.journal, Runtime: runtime{l}, Images: images{l}, Mounts: mounts{l},
		Sandboxes: sandboxes{l}, Host: facts, Log: log,
		Changed: func(st container.Status) {
			m.named(st.ID, fmt.Sprintf("%s/%s.%d", m.name(st.Sandbox), st.Name(), st.Config.GetMetadata().GetAttempt()))
			l.tell(st.ID, string(st.State))
		},
	})
	l.sandboxes = sandbox.New(sandbox.Config{
		Instance: instance, State: l.state(), Journal: l.journal, Network: network{l}, Containers: l.containers, Runtime: runtime{l}, Kernel: kernel{l},
		Handlers: handlers{}, Cgroups: cgroups{l}, Host: facts, Log: log,
		Changed: func(st sandbox.Status) {
			m.named(st.ID, fmt.Sprintf("%s.%d", st.Ref().Name, st.Config.GetMetadata().GetAttempt()))
			l.tell(st.ID, string(st.State))
		},
	})
	return l, l.resume()
}

// tell traces the state of something.
func (l *life) tell(id, state string) {
	if l.m.tracing && !l.over() {
		l.m.note("  %s is %s", l.m.name(id), state)
	}
}

func (l *life) root() string  { return filepath.Join(l.dir, "root") }
func (l *life) state() string { return filepath.Join(l.dir, "state") }

func (l *life) resume() error {
	bad := append(l.sandboxes.Load(), l.containers.Load()...)
	if len(bad) > 0 && !l.m.recordsLost { // one half of what belongs together, perhaps
		return fmt.Errorf("records are set aside: %w", errors.Join(bad...))
	}
	for _, err := range bad {
		l.m.note("  %v", err)
	}
	if err := l.m.reconcile(l.sandboxes.Attachments()); err != nil && !l.m.everLost {
		return err
	}
	l.m.recordsLost = false
	return errors.Join(l.forgiven(l.containers.Resume(context.Background())), l.forgiven(l.sandboxes.Resume()))
}

// forgiven leaves out what the machine did on purpose.
func (l *life) forgiven(err error) error {
	if err != nil && (errors.Is(err, errFault) || errors.Is(err, context.DeadlineExceeded) || l.over()) {
		l.m.unswept = true
		return nil
	}
	return err
}

// closeTime is what huskd gives work in flight when it ends.
const closeTime = 5 * time.Second

// end ends huskd in good order.
func (l *life) end() {
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

// kill ends huskd at this very moment.
func (l *life) kill() {
	l.m.mu.Lock()
	if !l.over() {
		close(l.died)
	}
	l.m.mu.Unlock()
	l.m.disk.Kill()
}

// cutPower ends everything at this very moment, and boots again.
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
