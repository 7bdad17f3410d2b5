package kubelet

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/huskd/husk/test/node"
)

// testDebug adds ephemeral containers to a pod, as kubectl debug does. It returns the new huskd.
func (o huskNode) testDebug() *node.Daemon {
	o.create(simple("looked-into", "", `command: [sh, -c, "exec sleep 12345"]`))
	before := o.await("looked-into", ready)
	pods := o.api.CoreV1().Pods("default")
	add := func(name, target string, stdin bool, command ...string) {
		o.t.Helper()
		p, err := pods.Get(o.t.Context(), "looked-into", metav1.GetOptions{})
		o.must(err)
		p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, corev1.EphemeralContainer{TargetContainerName: target, EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name: name, Image: image, ImagePullPolicy: corev1.PullNever, Command: command, Stdin: stdin, StdinOnce: stdin,
		}})
		_, err = pods.UpdateEphemeralContainers(o.t.Context(), p.Name, p, metav1.UpdateOptions{})
		o.must(err)
	}
	status := func(p *corev1.Pod, name string) corev1.ContainerStatus {
		for _, s := range p.Status.EphemeralContainerStatuses {
			if s.Name == name {
				return s
			}
		}
		return corev1.ContainerStatus{}
	}
	add("once", "", false, "sh", "-c", "echo seen; exit 4")
	p := o.await("looked-into", func(p *corev1.Pod) bool { return status(p, "once").State.Terminated != nil })
	ended := status(p, "once")
	if ended.State.Terminated.ExitCode != 4 || ended.ContainerID == "" {
		o.t.Errorf("the ended container is %+v", ended)
	}
	if log, err := pods.GetLogs("looked-into", &corev1.PodLogOptions{Container: "once"}).DoRaw(o.t.Context()); err != nil || string(log) != "seen\n" {
		o.t.Errorf("the log is %q: %v", log, err)
	}

	// A container with a target sees the target's processes, one without a target only its own.
	add("beside", "c", true, "cat")
	add("alone", "", false, "sleep", "1000")
	o.await("looked-into", func(p *corev1.Pod) bool {
		return status(p, "beside").State.Running != nil && status(p, "alone").State.Running != nil
	})
	for name, first := range map[string]string{"beside": "sleep 12345 ", "alone": "sleep 1000 "} {
		if got, err := o.exec("looked-into", name, nil, "sh", "-c", "tr '\\000' ' ' < /proc/1/cmdline"); err != nil || got != first {
			o.t.Errorf("the first process in the PID namespace of %s is %q: %v", name, got, err)
		}
	}
	u := o.api.CoreV1().RESTClient().Get().Resource("pods").Namespace("default").Name("looked-into").SubResource("attach").
		VersionedParams(&corev1.PodAttachOptions{Container: "beside", Stdin: true, Stdout: true}, scheme.ParameterCodec).URL()
	attach, err := remotecommand.NewWebSocketExecutor(o.config, http.MethodGet, u.String())
	o.must(err)
	said, says := echo()
	ctx, cancel := context.WithTimeout(o.t.Context(), time.Minute)
	defer cancel()
	if err := attach.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: said, Stdout: says}); err != nil {
		o.t.Errorf("attach: %v", err)
	}
	if got := says.text.String(); got != "hello\n" {
		o.t.Errorf("attached to cat: got %q", got)
	}

	// Killing huskd changes nothing, and restarts nothing.
	o.huskd.Kill()
	o.startNode()
	o.await("looked-into", func(p *corev1.Pod) bool {
		return status(p, "beside").State.Terminated != nil && status(p, "alone").State.Running != nil
	})
	after := o.await("looked-into", ready)
	if again := status(after, "once"); again.ContainerID != ended.ContainerID || again.RestartCount != 0 || status(after, "once").Ready {
		o.t.Errorf("the ended container was restarted: %+v", again)
	}
	if !slices.Equal(containers(after), containers(before)) {
		o.t.Error("the pod's own container was restarted")
	}
	// A missing program counts as ended, and doesn't make the pod unready.
	add("absent", "", false, "/no/such/program")
	p = o.await("looked-into", func(p *corev1.Pod) bool { return status(p, "absent").State.Terminated != nil })
	if s := status(p, "absent").State.Terminated; s.Reason != "StartError" || !ready(p) {
		o.t.Errorf("the container with a missing program is %+v", s)
	}
	o.huskd.Kill()
	o.startNode()
	o.must(pods.Delete(o.t.Context(), "looked-into", metav1.DeleteOptions{}))
	o.awaitDeleted("looked-into", p.UID)
	return o.huskd
}

// echo returns an input of one line, and an output. The input ends once a line was written to the
// output.
func echo() (*line, *answer) {
	a := &answer{came: make(chan struct{})}
	return &line{text: "hello\n", until: a.came}, a
}

type line struct {
	text  string
	until chan struct{}
}

func (l *line) Read(b []byte) (int, error) {
	if l.text == "" {
		<-l.until
		return 0, io.EOF
	}
	n := copy(b, l.text)
	l.text = l.text[n:]
	return n, nil
}

type answer struct {
	text bytes.Buffer // not embedded: io.Copy would bypass Write with ReadFrom
	came chan struct{}
}

func (a *answer) Write(b []byte) (int, error) {
	had := bytes.Contains(a.text.Bytes(), []byte("\n"))
	n, err := a.text.Write(b)
	if !had && bytes.Contains(a.text.Bytes(), []byte("\n")) {
		close(a.came)
	}
	return n, err
}
