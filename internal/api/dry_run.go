package api

import (
	"fmt"
	"strings"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/manifest"
)

// dryRun sends what Run would do with each pod, workload and object of a file. What a pod would
// wait for is a note.
func dryRun(file manifest.File, pods *agent.Agent, known manifest.Objects, stream grpc.ServerStreamingServer[huskv1.RunEvent]) error {
	var events []*huskv1.RunEvent
	add := func(kind, namespace, name, message string) {
		events = append(events, &huskv1.RunEvent{Kind: kind, Namespace: namespace, Name: name, Message: message, Settled: true})
	}
	for _, d := range file.Documents {
		add(strings.ToLower(d.Kind), d.Namespace, d.Name, "would be kept")
	}
	for _, w := range file.Workloads {
		add(strings.ToLower(string(w.Kind)), w.Namespace, w.Name, "would be run")
	}
	for i := range file.Pods {
		pod := &file.Pods[i]
		message := "would be started"
		if p, _, err := pods.Find(podName(pod)); err == nil {
			message = "would be changed, in place or with --replace"
			if p.Source != sourceRun {
				message = "would be refused, because it exists already, from " + p.Source
			} else if equality.Semantic.DeepEqual(p.Manifest.Spec, pod.Spec) {
				message = "would stay as it is"
			}
		}
		add("pod", pod.Namespace, pod.Name, message)
		for _, what := range undeclared(pod, known) {
			events = append(events, &huskv1.RunEvent{Note: fmt.Sprintf("pod %s refers to %s, which nothing declares", podName(pod), what)})
		}
	}
	for _, u := range file.Unused {
		events = append(events, &huskv1.RunEvent{Note: u.String()})
	}
	for _, ev := range events {
		if err := stream.Send(ev); err != nil {
			return err
		}
	}
	return nil
}

// undeclared returns the objects that a pod refers to and that are not known.
func undeclared(pod *corev1.Pod, known manifest.Objects) (missing []string) {
	manifest.References(pod, func(kind, name string) {
		if _, ok := known[manifest.ObjectKey(kind, pod.Namespace, name)]; !ok {
			missing = append(missing, strings.ToLower(kind)+" "+name)
		}
	})
	return missing
}
