package agent

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/manifest"
)

// minPrefix is how much of an ID must be given.
const minPrefix = 3

// Find returns the pod that a person means: by [namespace/]name, or by the
// beginning of its UID, of a sandbox's ID or of a container's. With a
// container's, the container's name is returned too.
func (a *Agent) Find(name string) (p Pod, containerName string, err error) {
	pods := a.List()
	for _, full := range []string{name, manifest.DefaultNamespace + "/" + name} {
		if i := slices.IndexFunc(pods, func(p Pod) bool { return p.Name() == full }); i >= 0 {
			return pods[i], "", nil
		}
	}
	type match struct {
		pod       Pod
		container string
	}
	var matches []match
	for _, p := range pods {
		switch {
		case p.Manifest.Name == name:
			matches = append(matches, match{p, ""})
		case len(name) < minPrefix:
		case p.hasID(name):
			matches = append(matches, match{p, ""})
		default:
			for _, c := range p.Containers {
				if strings.HasPrefix(c.ID, name) {
					matches = append(matches, match{p, c.Name()})
				}
			}
		}
	}
	switch len(matches) {
	case 0:
		return Pod{}, "", errdefs.ErrNotFound.WithMessage(fmt.Sprintf("no pod %q: husk ps -a lists them", name))
	case 1:
		return matches[0].pod, matches[0].container, nil
	}
	var names []string
	for _, m := range matches {
		names = append(names, strings.TrimSuffix(m.pod.Name()+" "+m.container, " "))
	}
	return Pod{}, "", errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("%q could be %s: give more of it", name, strings.Join(names, " or ")))
}

func (p Pod) hasID(prefix string) bool {
	if strings.HasPrefix(string(p.Manifest.UID), prefix) {
		return true
	}
	for _, s := range p.Sandboxes {
		if strings.HasPrefix(s.ID, prefix) {
			return true
		}
	}
	return false
}
