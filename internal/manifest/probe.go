package manifest

import (
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/manifest/podspec"
)

// setProbeDefaults sets the defaults of a probe as an API server would. p may be nil.
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

// Port resolves a port that is given by number or by its name in the container.
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

// onlySidecars is the problem of an init container with probes or hooks.
const onlySidecars = "an init container has none unless it is a sidecar: remove it, or set restartPolicy: Always"

func checkProbes(r *report, c *corev1.Container, at string, init bool) {
	for _, p := range []struct {
		name  string
		probe *corev1.Probe
	}{{"livenessProbe", c.LivenessProbe}, {"readinessProbe", c.ReadinessProbe}, {"startupProbe", c.StartupProbe}} {
		switch {
		case p.probe == nil:
		case init && !podspec.IsSidecar(c):
			r.invalid(at+"."+p.name, onlySidecars)
		default:
			checkProbe(r, c, p.probe, at+"."+p.name, p.name == "readinessProbe")
		}
	}
}

func checkProbe(r *report, c *corev1.Container, p *corev1.Probe, at string, readiness bool) {
	checkHandler(r, at, map[string]bool{
		"exec": p.Exec != nil, "httpGet": p.HTTPGet != nil, "tcpSocket": p.TCPSocket != nil, "grpc": p.GRPC != nil,
	})
	checkActions(r, c, at, &corev1.LifecycleHandler{Exec: p.Exec, HTTPGet: p.HTTPGet, TCPSocket: p.TCPSocket})
	if g := p.GRPC; g != nil && len(validation.IsValidPortNum(int(g.Port))) > 0 {
		r.invalid(at+".grpc.port", "%d is not within 1…65535", g.Port)
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
			r.invalid(at+"."+n.name, "%d is less than %d", n.value, n.least)
		}
	}
	if !readiness && p.SuccessThreshold > 1 {
		r.invalid(at+".successThreshold", "%d, but only a readinessProbe may have more than 1: remove it", p.SuccessThreshold)
	}
	switch g := p.TerminationGracePeriodSeconds; {
	case g == nil:
	case readiness:
		r.invalid(at+".terminationGracePeriodSeconds", "a readinessProbe never stops the container: remove it")
	case *g < 1 || *g > math.MaxInt32:
		r.invalid(at+".terminationGracePeriodSeconds", "%d is not within 1…%d", *g, math.MaxInt32)
	}
}

// checkHandler reports a probe or hook without exactly one action.
func checkHandler(r *report, at string, kinds map[string]bool) {
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
		r.invalid(at, "more than one of %s is set: set only one of them", words)
	case set == 0 && !r.faulty[at]:
		r.invalid(at, "it has no action: set one of %s", words)
	}
}

// checkActions checks the actions that probes and hooks have in common.
func checkActions(r *report, c *corev1.Container, at string, h *corev1.LifecycleHandler) {
	exec, get, tcp := h.Exec, h.HTTPGet, h.TCPSocket
	if exec != nil && len(exec.Command) == 0 {
		r.missing(at+".exec.command", "")
	}
	if tcp != nil {
		checkPort(r, c, at+".tcpSocket.port", tcp.Port)
	}
	if get == nil {
		return
	}
	checkPort(r, c, at+".httpGet.port", get.Port)
	choice(r, at+".httpGet.scheme", get.Scheme, corev1.URISchemeHTTP, corev1.URISchemeHTTPS)
	if strings.ContainsAny(get.Path, " \r\n\x00") {
		r.invalid(at+".httpGet.path", "%q contains white space or a NUL byte: write a space as %%20", get.Path)
	}
	for i, h := range get.HTTPHeaders {
		if len(validation.IsHTTPHeaderName(h.Name)) > 0 {
			r.invalid(indexed(at+".httpGet.httpHeaders", i)+".name", "%q is not valid: use letters, digits and -", h.Name)
		}
		if strings.ContainsAny(h.Value, "\r\n\x00") {
			r.invalid(indexed(at+".httpGet.httpHeaders", i)+".value", "contains a line break or a NUL byte: remove it")
		}
	}
}

func checkPort(r *report, c *corev1.Container, at string, port intstr.IntOrString) {
	if _, ok := Port(c, port); ok {
		return
	}
	if port.Type == intstr.String {
		r.invalid(at, "the container has no port %q: name it in ports, or use its number", port.StrVal)
		return
	}
	r.invalid(at, "%d is not within 1…65535", port.IntValue())
}

// checkLifecycle checks the hooks of a container. grace is the pod's terminationGracePeriodSeconds.
func checkLifecycle(r *report, c *corev1.Container, at string, init bool, grace int64) {
	switch {
	case c.Lifecycle == nil:
		return
	case init && !podspec.IsSidecar(c):
		r.invalid(at, onlySidecars)
		return
	}
	for _, h := range []struct {
		name string
		*corev1.LifecycleHandler
	}{{"postStart", c.Lifecycle.PostStart}, {"preStop", c.Lifecycle.PreStop}} {
		if h.LifecycleHandler == nil {
			continue
		}
		at := at + "." + h.name
		checkHandler(r, at, map[string]bool{
			"exec": h.Exec != nil, "httpGet": h.HTTPGet != nil, "tcpSocket": h.TCPSocket != nil, "sleep": h.Sleep != nil,
		})
		checkActions(r, c, at, h.LifecycleHandler)
		if s := h.Sleep; s != nil && (s.Seconds < 0 || s.Seconds > grace) {
			r.invalid(at+".sleep.seconds", "%d is not within 0…%d, the terminationGracePeriodSeconds", s.Seconds, grace)
		}
	}
	if s := c.Lifecycle.StopSignal; s != nil {
		if _, ok := StopSignal(*s); !ok {
			r.invalid(at+".stopSignal", "%q is not a signal such as SIGTERM or SIGRTMIN+3", *s)
		}
	}
}

// StopSignal converts a signal to CRI's enumeration.
func StopSignal(s corev1.Signal) (runtimeapi.Signal, bool) {
	name := strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(string(s))
	n, ok := runtimeapi.Signal_value["SIGNAL_"+name]
	return runtimeapi.Signal(n), ok && n != 0
}
