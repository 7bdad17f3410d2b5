package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/render"
)

// errNoPod is the kind of error of a name that no pod has.
var errNoPod = errors.New("husk ps -a lists them")

// findPod returns the pod of the list that a user names, as huskd would find it: by
// [pod/][NAMESPACE/]NAME or by an unambiguous prefix of its ID or UID.
func findPod(pods []*huskv1.Pod, name string) (*huskv1.Pod, error) {
	if kind, rest, ok := strings.Cut(name, "/"); ok && slices.Contains(podWords, kind) {
		name = rest
	}
	for _, full := range []string{name, "default/" + name} {
		if i := slices.IndexFunc(pods, func(p *huskv1.Pod) bool { return p.Namespace+"/"+p.Name == full }); i >= 0 {
			return pods[i], nil
		}
	}
	const minPrefix = 3
	var found []*huskv1.Pod
	var names []string
	for _, p := range pods {
		if p.Name == name || len(name) >= minPrefix && (strings.HasPrefix(p.Id, name) || strings.HasPrefix(p.Uid, name)) {
			found, names = append(found, p), append(names, render.PodName(p.Namespace, p.Name))
		}
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("no pod %q: %w", name, errNoPod)
	case 1:
		return found[0], nil
	}
	return nil, fmt.Errorf("%q is ambiguous, it may be %s: give the namespace or more of the ID", name, strings.Join(names, " or "))
}

// latestPod returns the newest pod.
func latestPod(pods []*huskv1.Pod) (*huskv1.Pod, error) {
	if len(pods) == 0 {
		return nil, errors.New("no pods: start one with husk run FILE")
	}
	return slices.MaxFunc(pods, func(x, y *huskv1.Pod) int { return cmp.Compare(x.CreatedNs, y.CreatedNs) }), nil
}
