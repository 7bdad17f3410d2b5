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

// debugs looks into a pod as kubectl debug does. It returns the huskd that runs
// then.
func (o own) debugs() *node.Daemon {
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
		o.t.Errorf("%+v", ended)
	}
	if log, err := pods.GetLogs("looked-into", &corev1.PodLogOptions{Container: "once"}).DoRaw(o.t.Context()); err != nil || string(log) != "seen\n" {
		o.t.Errorf("its log is %q: %v", log, err)
	}

	// One with a target sees the target's processes, one without its own only.
	add("beside", "c", true, "cat")
	add("alone", "", false, "sleep", "1000")
	o.await("looked-into", func(p *corev1.Pod) bool {
		return status(p, "beside").State.Running != nil && status(p, "alone").State.Running != nil
	})
	for name, first := range map[string]string{"beside": "sleep 12345 ", "alone": "sleep 1000 "} {
		if got, err := o.exec("looked-into", name, nil, "sh", "-c", "tr '\\000' ' ' < /proc/1/cmdline"); err != nil || got != first {
			o.t.Errorf("the first process that %s sees is %q: %v", name, got, err)
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
		o.t.Errorf("attached to cat, it says %q", got)
	}

	// huskd's death changes nothing, and nothing is started again.
	o.huskd.Kill()
	o.enlist()
	o.await("looked-into", func(p *corev1.Pod) bool {
		return status(p, "beside").State.Terminated != nil && status(p, "alone").State.Running != nil
	})
	after := o.await("looked-into", ready)
	if again := status(after, "once"); again.ContainerID != ended.ContainerID || again.RestartCount != 0 || status(after, "once").Ready {
		o.t.Errorf("it was started again: %+v", again)
	}
	if !slices.Equal(containers(after), containers(before)) {
		o.t.Error("the pod's own container was touched")
	}
	// A program that isn't there has ended, and doesn't keep the pod from being well.
	add("absent", "", false, "/no/such/program")
	p = o.await("looked-into", func(p *corev1.Pod) bool { return status(p, "absent").State.Terminated != nil })
	if s := status(p, "absent").State.Terminated; s.Reason != "StartError" || !ready(p) {
		o.t.Errorf("%+v", s)
	}
	o.huskd.Kill()
	o.enlist()
	o.must(pods.Delete(o.t.Context(), "looked-into", metav1.DeleteOptions{}))
	o.vanish("looked-into", p.UID)
	return o.huskd
}

// echo is input of one line, which ends once the line has come back.
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
	text bytes.Buffer // not embedded, or it would be filled without a Write
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
