package agent

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/logs"
	"github.com/huskd/husk/internal/manifest/criconfig"
)

// messages reads the termination messages of a pod's containers.
type messages struct {
	*podState
	known map[string]string // by container ID
}

// The kubelet's limits for a termination message that is taken from the log.
const (
	maxLogLines = 80
	maxLogBytes = 2048
)

// MessageFile returns the name of the file for the termination message of a container's run.
func MessageFile(name string, attempt uint32) string { return fmt.Sprintf("%s.%d", name, attempt) }

// mount gives a container the file for its termination message.
func (m *messages) mount(c *corev1.Container, run *criconfig.Run) error {
	path, err := m.a.cfg.Volumes.CreateMessageFile(m.uid(), MessageFile(c.Name, run.Attempt))
	if err != nil {
		return err
	}
	run.Mounts = append(run.Mounts, &runtimeapi.Mount{ContainerPath: c.TerminationMessagePath, HostPath: path, SelinuxRelabel: true})
	return nil
}

// of returns the termination message of a container that has ended or, if it left none, the
// runtime's message. The caller holds mu.
func (m *messages) of(st container.Status) string {
	if view.ContainerState(st) != podplan.ContainerExited {
		return st.Message
	}
	if text, ok := m.known[st.ID]; ok {
		return text
	}
	text := m.a.cfg.Volumes.ReadMessage(m.uid(), MessageFile(st.Name(), st.Config.GetMetadata().GetAttempt()))
	c := criconfig.FindContainer(m.manifest, st.Name())
	if text == "" && st.Exit.Code != 0 && c != nil && c.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
		text = logTail(st.Log)
	}
	if text == "" {
		text = st.Message
	}
	m.known[st.ID] = text
	return text
}

// logTail returns the last lines of a log, as much as can be read.
func logTail(path string) string {
	var out []byte
	_ = logs.Read(context.Background(), path, logs.Options{Tail: maxLogLines}, func(l logs.Line) error {
		if out = append(out, l.Text...); !l.Partial {
			out = append(out, '\n')
		}
		return nil
	})
	return string(out[max(0, len(out)-maxLogBytes):])
}
