package daemon

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/accept"
	"github.com/huskd/husk/internal/network/policy/declared"
)

// runSources runs the sources of manifests until ctx ends.
func runSources(ctx context.Context, d *daemon, running *errgroup.Group) error {
	running.Go(func() error {
		d.objects.Start()
		return nil
	})
	if d.cfg.Manifests != "" {
		directory := &source.Directory{
			Path: d.cfg.Manifests, Node: nodeName(d.cfg), Log: d.log, Policies: d.policy.Declares(), Services: d.services.Declared() != nil, Refused: noteRefused(d), Note: noteUnused(d), Deliver: d.objects.Declare,
		}
		d.manifests.Store(directory)
		running.Go(func() error { return directory.Run(ctx) })
	}
	if d.cfg.Web != "" {
		header, err := d.cfg.Header()
		if err != nil {
			return err
		}
		web := &source.URL{
			URL: d.cfg.Web, Header: header, Interval: time.Duration(d.cfg.WebSeconds) * time.Second, Node: nodeName(d.cfg), Log: d.log,
			Policies: d.policy.Declares(), Services: d.services.Declared() != nil, Note: noteUnused(d), Deliver: d.objects.Declare,
		}
		running.Go(func() error { return web.Run(ctx) })
	}
	return nil
}

// declaredPods returns what policies need of the agent's pods.
func declaredPods(d *daemon) (out []*policy.Pod) {
	if d.agent == nil {
		return nil
	}
	for p := range d.agent.Views() {
		if q := accept.Pod(p.Manifest); q != nil && !p.Finished {
			out = append(out, q)
		}
	}
	return out
}

// declare takes what a source of manifests declares, and the objects of all sources. Pods start
// after the policies are in force.
func declare(d *daemon) func(source.Set, manifest.Objects) {
	return func(set source.Set, all manifest.Objects) {
		d.policy.Declare(string(set.Kind), declared.Objects{Policies: set.Policies, Namespaces: set.Namespaces, Unread: set.UnreadPolicies, Doubts: set.Doubts})
		if set.Kind != source.Run {
			set.Objects = all
			d.services.Declare(set) // before the pods, which have their addresses in variables
			d.agent.Declare(set)
			d.workloads.Declare(set)
		}
		d.agent.Share(all)
		d.workloads.Share(all)
		d.policy.PodChanged()
	}
}

// noteRefused returns what says that a file of the manifests directory is refused.
func noteRefused(d *daemon) func(reason string) {
	return func(reason string) {
		d.agent.Events.Add(event.Event{Warning: true, Reason: "ManifestRefused", Message: reason})
	}
}

// noteUnused returns what says that an object of a manifest has no effect.
func noteUnused(d *daemon) func(location string, unused manifest.Unused) {
	return func(location string, unused manifest.Unused) {
		d.agent.Events.Add(event.Event{Reason: "Unused", Message: fmt.Sprintf("%s: %v", location, unused)})
	}
}
