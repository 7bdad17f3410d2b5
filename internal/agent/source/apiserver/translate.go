package apiserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/admission"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/remedy"
)

// WholePod is the key of a refusal that isn't about a single container.
const WholePod = ""

// The reasons of what this node can't run, whichever other pods it has. Those of volumes
// without a plugin, podplan.ReasonMount, and of resource claims without a driver are those of a
// kubelet's events.
const (
	reasonPrepare = "FailedPrepareDynamicResources"
	// ReasonNotSupported is the reason of the rest, for which a kubelet has none.
	ReasonNotSupported = "NotSupported"
)

// refusalOf returns why a pod isn't run, with a kubelet's words where it would wait likewise. Paths
// are relative to the container at the prefix.
func refusalOf(err error, prefix string) admission.Refusal {
	text := problemText(err, prefix)
	wrong, _ := errors.AsType[*manifest.Error](err)
	about := func(parts ...string) bool {
		return wrong != nil && slices.ContainsFunc(wrong.Problems, func(p manifest.Problem) bool {
			return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(p.Path, part) })
		})
	}
	switch {
	case prefix != "": // of an ephemeral container, whose pod has all that it needs
	case about("spec.volumes[", ".volumeDevices"): // a kubelet begins with these
		return admission.Refusal{Reason: podplan.ReasonMount, Message: "Unable to attach or mount volumes: " + text}
	case about("spec.resourceClaims", ".resources.claims"):
		return admission.Refusal{Reason: reasonPrepare, Message: "Failed to prepare dynamic resources: " + text}
	}
	return admission.Refusal{Reason: ReasonNotSupported, Message: text}
}

// translate converts the pod for the agent and stores it in b. It stores what the node can't run in
// b.refused, and logs it if that has changed. An error means that the pod can't be converted yet.
func (s *Source) translate(b *bound, pod *corev1.Pod) error {
	handler, err := s.handler(pod)
	if err != nil {
		return err
	}
	b.raw = pod
	refused := map[string]admission.Refusal{}
	refuse := func(key string, err error, at string) {
		refused[key] = refusalOf(err, at)
	}
	valid, tokens, err := parse(pod, handler)
	b.tokens = tokens // volumes don't change, so these are also the tokens of an earlier version
	if extra := pod.Spec.EphemeralContainers; err != nil && len(extra) > 0 {
		// The pod runs without the ephemeral containers that aren't valid. The others stay valid, as
		// the server only ever appends one.
		reduced := pod.DeepCopy()
		reduced.Spec.EphemeralContainers = nil
		valid, _, err = parse(reduced, handler)
		for _, c := range extra {
			if err != nil {
				break
			}
			reduced.Spec.EphemeralContainers = append(reduced.Spec.EphemeralContainers, c)
			more, _, problem := parse(reduced, handler)
			if problem == nil {
				valid = more
				continue
			}
			last := len(reduced.Spec.EphemeralContainers) - 1
			reduced.Spec.EphemeralContainers = reduced.Spec.EphemeralContainers[:last]
			refuse(c.Name, problem, fmt.Sprintf("spec.containers[%d].", len(pod.Spec.Containers)+last))
		}
	}
	if err != nil {
		refuse(WholePod, err, "")
	} else {
		b.pod = valid
	}
	if maps.Equal(b.refused, refused) {
		return nil
	}
	b.refused = refused
	for name, why := range refused {
		s.Log.Warn("API server: this node can't run what the pod has; what runs of it stays as it was", "pod", pod.Namespace+"/"+pod.Name, "container", name, "problem", why.Message)
	}
	return nil
}

// parse returns the pod as it is for the agent, or the problems of the pod.
func parse(pod *corev1.Pod, handler string) (*corev1.Pod, []tokenSpec, error) {
	plain, tokens := standalonePod(pod, handler)
	var claims []manifest.Problem
	for i := range plain.Spec.Volumes {
		if kind := claimKind(&plain.Spec.Volumes[i]); kind != "" {
			claims = append(claims, manifest.Problem{Path: fmt.Sprintf("spec.volumes[%d].%s", i, kind), Text: remedy.Claim()})
		}
	}
	if len(claims) > 0 {
		return nil, tokens, &manifest.Error{File: "pod", Problems: claims}
	}
	data, err := json.Marshal(plain)
	if err != nil {
		return nil, tokens, err
	}
	f, err := manifest.Parse(data, manifest.Origin{File: "pod", Node: pod.Spec.NodeName, Source: string(source.API) + locationOf(pod), From: remedy.Cluster})
	if err != nil {
		return nil, tokens, err
	}
	restore(&f.Pods[0], pod)
	return &f.Pods[0], tokens, nil
}

// claimKind returns the field of a volume that is a claim of the cluster, or "".
func claimKind(v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return "persistentVolumeClaim"
	case v.Ephemeral != nil:
		return "ephemeral"
	}
	return ""
}

var envFromIndex = regexp.MustCompile(`\benvFrom\[(\d+)\]`)

// asWritten returns a path of a standalone pod as it is in the pod on the server: without the
// variables of services, which standalonePod puts before what a container has in envFrom.
func asWritten(path string) string {
	return envFromIndex.ReplaceAllStringFunc(path, func(part string) string {
		i, _ := strconv.Atoi(envFromIndex.FindStringSubmatch(part)[1])
		return fmt.Sprintf("envFrom[%d]", max(i-1, 0))
	})
}

// problemText returns the problems of a pod on one line, without file name and line numbers. Paths
// are relative to the container at the prefix.
func problemText(err error, prefix string) string {
	wrong, ok := errors.AsType[*manifest.Error](err)
	if !ok {
		return cluster.OneLine(err)
	}
	var out []string
	for _, p := range wrong.Problems {
		out = append(out, strings.TrimPrefix(strings.TrimPrefix(asWritten(p.Path), prefix)+": "+p.Text, ": "))
	}
	return cluster.OneLine(errors.New(strings.Join(out, "; ")))
}
