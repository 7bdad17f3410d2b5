package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/cni/conf"
	"github.com/huskd/husk/internal/cni/request"
	"github.com/huskd/husk/internal/crashpoint"
	"github.com/huskd/husk/internal/pod"
)

// firstLink is the name of a pod's interface in its first network.
const firstLink = "eth0"

// Attach attaches a sandbox to its networks: the node's default networks, then those
// that the pod's annotations name. It is idempotent. If it fails, it detaches the
// sandbox from all of them.
func (h *Host) Attach(ctx context.Context, a pod.Attachment) ([]pod.Attached, error) {
	requested, err := request.Read(a.Annotations)
	if err != nil {
		return nil, errdefs.ErrInvalidArgument.WithMessage(strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	networks := h.Networks()
	if networks.Err != nil {
		return nil, networks.Err
	}
	wants, err := h.wants(networks, a, requested)
	if err != nil {
		return nil, err
	}
	if len(wants) == 0 {
		a.IPs, a.MAC, a.Bandwidth = requested.First.Addresses(), requested.First.MAC, requested.Bandwidth
		one, err := h.cfg.Builtin.Attach(ctx, a)
		if err != nil {
			return nil, err
		}
		return []pod.Attached{*one}, nil
	}
	leave, err := h.enter(ctx, a.Sandbox)
	if err != nil {
		return nil, err
	}
	defer leave()
	var all []pod.Attached
	for _, w := range wants {
		one, err := h.attach(ctx, w)
		if err != nil {
			h.detach(ctx, a.Sandbox)
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// want is a network that a sandbox should be attached to.
type want struct {
	network conf.Network
	facts   request.Facts
	link    request.Interface
}

// wants returns the networks of a sandbox; none means Builtin.
func (h *Host) wants(networks conf.State, a pod.Attachment, requested request.Request) ([]want, error) {
	h.mu.Lock()
	facts := request.Facts{Attachment: a, Ranges: h.ranges, Bandwidth: requested.Bandwidth}
	h.mu.Unlock()
	defaults := h.defaults(networks)
	if len(defaults) == 0 && len(requested.More) > 0 {
		return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("pod %s requests network %s, but no CNI network is configured", a.Pod, requested.More[0].Network))
	}
	taken := []string{a.IfName}
	for _, link := range requested.More {
		taken = append(taken, link.IfName)
	}
	next := func() string {
		for i := 0; ; i++ {
			if name := "eth" + strconv.Itoa(i); !slices.Contains(taken, name) {
				taken = append(taken, name)
				return name
			}
		}
	}
	var list []want
	for i, n := range defaults {
		link := request.Interface{}
		if i == 0 {
			link = requested.First
			link.IfName = a.IfName
		} else {
			link.IfName = next()
		}
		list = append(list, want{n, facts, link})
	}
	for _, link := range requested.More {
		n, ok := networks.Network(link.Network)
		if !ok {
			return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("pod %s requests network %s, which is not configured", a.Pod, link.Network))
		}
		switch link.IfName {
		case a.IfName:
			return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("pod %s requests network %s on %s, which belongs to the node's default network", a.Pod, link.Network, link.IfName))
		case "":
			link.IfName = next()
		}
		list = append(list, want{n, facts, link})
	}
	return list, nil
}

// record returns the record of a new attachment. It has the capability arguments that
// some plugin of the network supports.
func (w want) record() (record, error) {
	r := record{Attachment: w.facts.Attachment, Network: w.network.List.Name, State: adding}
	r.Attachment.IfName = w.link.IfName
	r.Attachment.Annotations, r.Attachment.DNS = nil, nil
	var err error
	if r.Args, err = request.Args(r.Attachment); err != nil {
		return r, err
	}
	if r.Conf, err = conf.Marshal(w.network.List); err != nil {
		return r, err
	}
	has := map[string]bool{}
	for _, plugin := range w.network.List.Plugins {
		for name, is := range plugin.Network.Capabilities {
			has[name] = has[name] || is
		}
	}
	r.Caps = map[string]json.RawMessage{}
	for name, value := range w.facts.Capabilities(w.link) {
		if !has[name] {
			continue
		}
		if r.Caps[name], err = json.Marshal(value); err != nil {
			return r, err
		}
	}
	for name, requested := range map[string]bool{"ips": len(w.link.IPs) > 0, "mac": w.link.MAC != ""} {
		if requested && !has[name] {
			return r, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("the pod requests its own %s, but no plugin of network %s has the capability %s", name, r.Network, name))
		}
	}
	return r, nil
}

// attach attaches a sandbox to one network. The caller holds the sandbox's lock.
func (h *Host) attach(ctx context.Context, w want) (pod.Attached, error) {
	r, err := w.record()
	if err != nil {
		return pod.Attached{}, fmt.Errorf("pod %s: %w", w.facts.Attachment.Pod, err)
	}
	if previous := h.find(r.key()); previous != nil {
		if previous.State == attached && previous.Network == r.Network && previous.Attachment.Netns == r.Attachment.Netns {
			return previous.Attached, nil
		}
		if err := h.del(ctx, previous, h.cfg.Timeout); err != nil {
			return pod.Attached{}, fmt.Errorf("its previous attachment can't be deleted: %w", err)
		}
	}
	h.warnPorts(r)
	err = h.add(ctx, &r)
	return r.Attached, err
}

// add runs ADD for a record. It journals the record before, after each plugin, and at the
// end.
func (h *Host) add(ctx context.Context, r *record) error {
	put := func(r record) error { return h.store(r, h.records.Put) }
	if err := put(*r); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, h.cfg.Timeout)
	defer cancel()
	if err := h.plugins.add(ctx, r, put); err != nil {
		return err
	}
	r.State = attached
	err := put(*r)
	crashpoint.Hit("cni.attached")
	return err
}

// warnPorts warns if hostPorts can't be passed to any plugin of the network.
func (h *Host) warnPorts(r record) {
	if _, ok := r.Caps["portMappings"]; !ok && len(r.Attachment.Ports) > 0 && r.Attachment.IfName == firstLink {
		h.cfg.Log.Warn("cni: no plugin of the network has the capability portMappings; the pod's hostPorts work only if the network maps them by itself", "pod", r.Attachment.Pod, "network", r.Network)
	}
}

// Detach detaches a sandbox from all its networks. A failed DEL is not an error, but
// becomes a debt. Nor is it an error if the sandbox isn't attached.
func (h *Host) Detach(ctx context.Context, a pod.Attachment) error {
	leave, err := h.enter(ctx, a.Sandbox)
	if err != nil {
		return err
	}
	defer leave()
	if len(h.of(a.Sandbox)) == 0 {
		return h.cfg.Builtin.Detach(ctx, a)
	}
	h.detach(ctx, a.Sandbox)
	return nil
}

// detachTimeout is how long stopping a pod waits for DEL. A DEL that takes longer
// becomes a debt; retries have the timeout of Config.
const detachTimeout = 20 * time.Second

// detach runs DEL for a sandbox's attachments. The caller holds the sandbox's lock.
func (h *Host) detach(ctx context.Context, sandbox string) {
	for _, r := range h.of(sandbox) {
		if err := h.del(ctx, r, min(detachTimeout, h.cfg.Timeout)); err != nil {
			h.cfg.Log.Warn("cni: DEL failed, is owed and will be retried", "pod", r.Attachment.Pod, "sandbox", pod.Short(sandbox), "error", err)
		}
	}
}

// del runs DEL for an attachment and deletes its record, or makes it a debt. It ignores
// the end of ctx; only timeout and Close interrupt it. The caller holds the sandbox's
// lock.
func (h *Host) del(ctx context.Context, r *record, timeout time.Duration) error {
	debt := *r
	debt.State = deleting
	if debt.Since.IsZero() {
		debt.Since = time.Now()
	}
	// If this can't be written, go on: the existing record leads to DEL as well.
	_ = h.store(debt, h.records.PutUsingReserve)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	stop := context.AfterFunc(h.closing, cancel)
	defer stop()
	undo := debt
	undo.Attachment.Netns = h.retained.find(r.Attachment)
	if err := h.plugins.del(ctx, &undo); err != nil {
		if err := h.retained.keep(r.Attachment); err != nil {
			h.cfg.Log.Warn("cni: the network namespace could not be retained for DEL", "sandbox", pod.Short(r.Attachment.Sandbox), "error", err)
		}
		debt.Tries++
		debt.Error = err.Error()
		debt.retryAt = time.Now().Add(pause(debt.Tries))
		storeErr := h.store(debt, h.records.PutUsingReserve)
		select {
		case h.wake <- struct{}{}:
		default:
		}
		return errors.Join(err, storeErr)
	}
	crashpoint.Hit("cni.deleted")
	var err error
	if sandbox := r.Attachment.Sandbox; len(h.of(sandbox)) == 1 { // it was the last one
		err = h.retained.release(sandbox)
	}
	return errors.Join(err, h.forget(&debt))
}
