package manifest

import (
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// setProbeDefaults fills in a probe, if there is one, as an API server would.
func setProbeDefaults(p *corev1.Probe) {
	if p == nil {
		return
	}
	setDefault(&p.TimeoutSeconds, 1)
	setDefault(&p.PeriodSeconds, 10)
	setDefault(&p.SuccessThreshold, 1)
	setDefault(&p.FailureThreshold, 3)
	setHTTPDefaults(p.HTTPGet)
	if g := p.GRPC; g != nil && g.Service == nil {
		g.Service = new("")
	}
}

func setHTTPDefaults(h *corev1.HTTPGetAction) {
	if h != nil {
		setDefault(&h.Path, "/")
		setDefault(&h.Scheme, corev1.URISchemeHTTP)
	}
}

func setLifecycleDefaults(l *corev1.Lifecycle) {
	if l == nil {
		return
	}
	for _, h := range []*corev1.LifecycleHandler{l.PostStart, l.PreStop} {
		if h != nil {
			setHTTPDefaults(h.HTTPGet)
		}
	}
}

// Port is the number of a port that may be given by its name in the container.
func Port(c *corev1.Container, port intstr.IntOrString) (number int, ok bool) {
	if port.Type == intstr.Int {
		return port.IntValue(), len(validation.IsValidPortNum(port.IntValue())) == 0
	}
	for _, p := range c.Ports {
		if p.Name == port.StrVal && p.Name != "" {
			return int(p.ContainerPort), true
		}
	}
	return 0, false
}

// care checks what looks after a container while it runs.
type care struct{ *validator }

func (v care) probes(c *corev1.Container, at string, init bool) {
	for _, p := range []struct {
		name  string
		probe *corev1.Probe
	}{{"livenessProbe", c.LivenessProbe}, {"readinessProbe", c.ReadinessProbe}, {"startupProbe", c.StartupProbe}} {
		switch {
		case p.probe == nil:
		case init && !IsSidecar(c):
			v.invalid(at+"."+p.name, "an init container that runs to its end has none: remove it, or make it a sidecar by restartPolicy: Always")
		default:
			v.probe(c, p.probe, at+"."+p.name, p.name == "readinessProbe")
		}
	}
	if c.Lifecycle == nil {
		return
	}
	if init && !IsSidecar(c) {
		v.invalid(at+".lifecycle", "an init container that runs to its end has none: remove it, or make it a sidecar by restartPolicy: Always")
		return
	}
	v.lifecycle(c, at+".lifecycle")
}

func (v care) probe(c *corev1.Container, p *corev1.Probe, at string, readiness bool) {
	v.handler(at, map[string]bool{
		"exec": p.Exec != nil, "httpGet": p.HTTPGet != nil, "tcpSocket": p.TCPSocket != nil, "grpc": p.GRPC != nil,
	})
	v.actions(c, at, p.Exec, p.HTTPGet, p.TCPSocket)
	if g := p.GRPC; g != nil && len(validation.IsValidPortNum(int(g.Port))) > 0 {
		v.invalid(at+".grpc.port", "%d is not within 1…65535", g.Port)
	}
	for _, n := range []struct {
		name  string
		value int32
		least int32
	}{
		{"initialDelaySeconds", p.InitialDelaySeconds, 0}, {"timeoutSeconds", p.TimeoutSeconds, 1}, {"periodSeconds", p.PeriodSeconds, 1},
		{"successThreshold", p.SuccessThreshold, 1}, {"failureThreshold", p.FailureThreshold, 1},
	} {
		if n.value < n.least {
			v.invalid(at+"."+n.name, "%d is less than %d", n.value, n.least)
		}
	}
	if !readiness && p.SuccessThreshold > 1 {
		v.invalid(at+".successThreshold", "%d, only a readinessProbe may need more than 1: remove it", p.SuccessThreshold)
	}
	switch g := p.TerminationGracePeriodSeconds; {
	case g == nil:
	case readiness:
		v.invalid(at+".terminationGracePeriodSeconds", "a readinessProbe stops nothing: remove it")
	case *g < 1 || *g > math.MaxInt32:
		v.invalid(at+".terminationGracePeriodSeconds", "%d is not within 1…%d", *g, math.MaxInt32)
	}
}

// handler notes what has not exactly one of the kinds.
func (v care) handler(at string, kinds map[string]bool) {
	set := 0
	for _, is := range kinds {
		if is {
			set++
		}
	}
	words := "exec, httpGet, tcpSocket or grpc"
	if _, hook := kinds["sleep"]; hook {
		words = "exec, httpGet, tcpSocket or sleep"
	}
	switch {
	case set > 1:
		v.invalid(at, "more than one of %s is set: set one of them", words)
	case set == 0 && !v.faulty[at]:
		v.invalid(at, "nothing to do: set one of %s", words)
	}
}

// actions checks those that probes and hooks have in common.
func (v care) actions(c *corev1.Container, at string, exec *corev1.ExecAction, get *corev1.HTTPGetAction, tcp *corev1.TCPSocketAction) {
	if exec != nil && len(exec.Command) == 0 {
		v.missing(at+".exec.command", "")
	}
	if tcp != nil {
		v.port(c, at+".tcpSocket.port", tcp.Port)
	}
	if get == nil {
		return
	}
	v.port(c, at+".httpGet.port", get.Port)
	choice(v.validator, at+".httpGet.scheme", get.Scheme, corev1.URISchemeHTTP, corev1.URISchemeHTTPS)
	if strings.ContainsAny(get.Path, " \r\n\x00") {
		v.invalid(at+".httpGet.path", "%q has white space or a zero byte: write it as %%20", get.Path)
	}
	for i, h := range get.HTTPHeaders {
		if len(validation.IsHTTPHeaderName(h.Name)) > 0 {
			v.invalid(indexed(at+".httpGet.httpHeaders", i)+".name", "%q can't be one: use letters, digits and -", h.Name)
		}
		if strings.ContainsAny(h.Value, "\r\n\x00") {
			v.invalid(indexed(at+".httpGet.httpHeaders", i)+".value", "has a line break or a zero byte: remove it")
		}
	}
}

func (v care) port(c *corev1.Container, at string, port intstr.IntOrString) {
	if _, ok := Port(c, port); ok {
		return
	}
	if port.Type == intstr.String {
		v.invalid(at, "the container has no port %q: name one in ports, or write its number", port.StrVal)
		return
	}
	v.invalid(at, "%d is not within 1…65535", port.IntValue())
}

func (v care) lifecycle(c *corev1.Container, at string) {
	for _, h := range []struct {
		name string
		*corev1.LifecycleHandler
	}{{"postStart", c.Lifecycle.PostStart}, {"preStop", c.Lifecycle.PreStop}} {
		if h.LifecycleHandler == nil {
			continue
		}
		at := at + "." + h.name
		v.handler(at, map[string]bool{
			"exec": h.Exec != nil, "httpGet": h.HTTPGet != nil, "tcpSocket": h.TCPSocket != nil, "sleep": h.Sleep != nil,
		})
		v.actions(c, at, h.Exec, h.HTTPGet, h.TCPSocket)
		grace := *v.pod.Spec.TerminationGracePeriodSeconds
		if s := h.Sleep; s != nil && (s.Seconds < 0 || s.Seconds > grace) {
			v.invalid(at+".sleep.seconds", "%d is not within 0…%d, the terminationGracePeriodSeconds", s.Seconds, grace)
		}
	}
	if s := c.Lifecycle.StopSignal; s != nil {
		if _, ok := StopSignal(*s); !ok {
			v.invalid(at+".stopSignal", "%q is not a signal such as SIGTERM or SIGRTMIN+3", *s)
		}
	}
}

// StopSignal is a signal as CRI spells it.
func StopSignal(s corev1.Signal) (runtimeapi.Signal, bool) {
	name := strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(string(s))
	n, ok := runtimeapi.Signal_value["SIGNAL_"+name]
	return runtimeapi.Signal(n), ok && n != 0
}
