package agent

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/probe"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/sandbox"
)

// workers are the workers of all pods.
type workers struct {
	byName map[string]*worker // namespace/name
	byUID  map[string]*worker
}

func (all workers) add(w *worker) { all.byName[w.name()], all.byUID[w.uid()] = w, w }

func (all workers) remove(w *worker) {
	delete(all.byName, w.name())
	delete(all.byUID, w.uid())
}

// Views yields all pods, in no order. It copies none of them, so they must not be changed.
func (a *Agent) Views() iter.Seq[*Pod] {
	return func(yield func(*Pod) bool) {
		a.mu.RLock()
		all := slices.Collect(maps.Values(a.workers.byName))
		a.mu.RUnlock()
		for _, w := range all {
			if !yield(&w.published.latest.Load().pod) {
				return
			}
		}
	}
}

// List returns all pods, newest first.
func (a *Agent) List() []Pod {
	views := slices.SortedFunc(a.Views(), func(x, y *Pod) int { return y.Created.Compare(x.Created) })
	list := make([]Pod, len(views))
	for i, p := range views {
		list[i] = *p
	}
	return list
}

// Get returns the pod with that UID.
func (a *Agent) Get(uid string) (Pod, error) {
	w, err := a.worker(uid)
	if err != nil {
		return Pod{}, err
	}
	return w.published.pod(), nil
}

// ProbeTallies returns the results of the probes of all pods.
func (a *Agent) ProbeTallies() []probe.Tally { return a.probes.Tallies() }

func (a *Agent) worker(uid string) (*worker, error) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if w := a.workers.byUID[uid]; w != nil {
		return w, nil
	}
	return nil, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("pod %s not found: it was removed", uid))
}

// minPrefix is the least length of the prefix of an ID.
const minPrefix = 3

// Find returns the pod that a user names: by [namespace/]name, or by a prefix of its UID, of a
// sandbox's ID or of a container's ID. The name may follow "pod/", and "/" and the name of a
// container may follow it. It returns the container's name too if name is about one.
func (a *Agent) Find(name string) (p Pod, containerName string, err error) {
	pods := a.List()
	if p, containerName, err = find(pods, name); !errdefs.IsNotFound(err) {
		return p, containerName, err
	}
	if kind, rest, _ := strings.Cut(name, "/"); slices.Contains([]string{"pod", "pods", "po"}, kind) && rest != "" {
		if p, containerName, err = find(pods, rest); !errdefs.IsNotFound(err) {
			return p, containerName, err
		}
		name = rest
	}
	if i := strings.LastIndex(name, "/"); i > 0 {
		in, _, inErr := find(pods, name[:i])
		if inErr == nil && slices.ContainsFunc(slices.Concat(in.Status.Containers, in.Status.Ephemeral), func(c podplan.ContainerStatus) bool { return c.Name == name[i+1:] }) {
			return in, name[i+1:], nil
		}
	}
	return p, containerName, err
}

func find(pods []Pod, name string) (p Pod, containerName string, err error) {
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
	return Pod{}, "", errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("%q is ambiguous, it may be %s: give the namespace or more of the ID", name, strings.Join(names, " or ")))
}

// hasID reports whether the UID or a sandbox's ID begins with prefix.
func (p Pod) hasID(prefix string) bool {
	return strings.HasPrefix(string(p.Manifest.UID), prefix) ||
		slices.ContainsFunc(p.Sandboxes, func(st sandbox.Status) bool { return strings.HasPrefix(st.ID, prefix) })
}
