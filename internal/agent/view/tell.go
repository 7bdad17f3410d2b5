package view

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/trace"
)

// The names of what else a span of a pod may be about.
const (
	ContainerName = trace.ContainerName
	ImageName     = trace.Image
)

// About names a pod to who traces what is done for it: names and values in turn.
func About(p *corev1.Pod) []string {
	return []string{trace.PodNamespace, p.Namespace, trace.PodName, p.Name, trace.PodUID, string(p.UID)}
}

// Where says for a log in which sandbox and stage an error was: names and values
// in turn.
func Where(err error) []any { return pod.LogAttrs(err) }
