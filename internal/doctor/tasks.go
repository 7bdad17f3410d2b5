package doctor

import (
	"fmt"
	"strings"
)

// Tasks are limits on processes and threads.
type Tasks struct {
	// Node is how many the node can have, and Pods how many those of huskd's pods that are in its
	// own cgroup may have together.
	Node, Pods int64
	// Own is the sum of the limits of these pods, and Others that of pods in cgroups of a client,
	// such as a kubelet's.
	Own, Others int64
	// Unlimited are the pods without a limit of their own.
	Unlimited []string
}

// tasks checks that pods leave processes and threads to each other and to the node.
func (d *diagnosis) tasks(t Tasks) {
	const name = "processes"
	d.add(name, ok, fmt.Sprintf("pods may have %d of the node's %d processes and threads", t.Pods, t.Node), "")
	if len(t.Unlimited) > 0 {
		d.add(name, warn, fmt.Sprintf("%s may have as many processes and threads as there are, and leave none to others", strings.Join(t.Unlimited, ", ")), "set pids-limit and pod-pids-limit, and create the pods again")
	}
	if t.Own > t.Pods {
		d.add(name, note, fmt.Sprintf("the running pods may have %d processes and threads, each up to its limit, but all together %d", t.Own, t.Pods), "raise kernel.pid_max and kernel.threads-max, or lower pod-pids-limit")
	}
	if t.Others > t.Node-t.Node/10 {
		d.add(name, warn, fmt.Sprintf("the kubelet's pods may have %d processes and threads, and the node %d", t.Others, t.Node), "reserve pid in the kubelet's systemReserved and enforce it, set its podPidsLimit, or raise kernel.pid_max and kernel.threads-max")
	}
}

// Room is how many pods the node runs, may run, and has no room for, of those that it was given as
// manifests or by an API server.
type Room struct{ Pods, Max, Waiting int }

// check checks that the node may run all its pods.
func (r Room) check(d *diagnosis) {
	const name = "number of pods"
	if r.Waiting > 0 {
		d.add(name, warn, fmt.Sprintf("%d pods wait, as the node runs at most %d", r.Waiting, r.Max), "raise max-pods in the configuration and restart huskd, or remove pods")
		return
	}
	d.add(name, ok, fmt.Sprintf("%d of at most %d", r.Pods, r.Max), "")
}
