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

// firstLink is a pod's interface in its first network.
const firstLink = "eth0"

// Attach attaches a sandbox to its networks: those that the node has by
// default, then those that the pod names. For the same sandbox it answers the
// same again. If it fails, all that was attached is detached, or owed.
func (h *Host) Attach(ctx context.Context, a pod.Attachment) ([]pod.Attached, error) {
	asked, err := request.Read(a.Annotations)
	if err != nil {
		return nil, errdefs.ErrInvalidArgument.WithMessage(strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	networks := h.Networks()
	if networks.Err != nil {
		return nil, networks.Err
	}
	wants, err := h.wants(networks, a, asked)
	if err != nil {
		return nil, err
	}
	if len(wants) == 0 {
		a.IPs, a.MAC, a.Bandwidth = asked.First.Addresses(), asked.First.MAC, asked.Bandwidth
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

// want is one network that a sandbox shall be attached to.
type want struct {
	network conf.Network
	facts   request.Facts
	link    request.Interface
}

// wants returns the networks for a sandbox. None means the built-in one.
func (h *Host) wants(networks conf.State, a pod.Attachment, asked request.Request) ([]want, error) {
	h.mu.Lock()
	about := request.Facts{Attachment: a, Ranges: h.ranges, Bandwidth: asked.Bandwidth}
	h.mu.Unlock()
	defaults := h.defaults(networks)
	if len(defaults) == 0 && len(asked.More) > 0 {
		return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("pod %s asks for network %s, and no CNI network is configured", a.Pod, asked.More[0].Network))
	}
	taken := []string{a.IfName}
	for _, link := range asked.More {
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
			link = asked.First
			link.IfName = a.IfName
		} else {
			link.IfName = next()
		}
		list = append(list, want{n, about, link})
	}
	for _, link := range asked.More {
		n, ok := networks.Network(link.Network)
		if !ok {
			return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("pod %s asks for network %s, which is not configured", a.Pod, link.Network))
		}
		switch link.IfName {
		case a.IfName:
			return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("pod %s asks for network %s on %s, which is the node's default network's", a.Pod, link.Network, link.IfName))
		case "":
			link.IfName = next()
		}
		list = append(list, want{n, about, link})
	}
	return list, nil
}

// record returns the attachment that is wanted. It keeps the capability
// arguments that a plugin of the network asks for.
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
	for name, chosen := range map[string]bool{"ips": len(w.link.IPs) > 0, "mac": w.link.MAC != ""} {
		if chosen && !has[name] {
			return r, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("the pod chooses its %s, and no plugin of network %s has the capability %s", name, r.Network, name))
		}
	}
	return r, nil
}

// attach attaches to one network. The caller has the sandbox's lock.
func (h *Host) attach(ctx context.Context, w want) (pod.Attached, error) {
	r, err := w.record()
	if err != nil {
		return pod.Attached{}, fmt.Errorf("pod %s: %w", w.facts.Attachment.Pod, err)
	}
	if former := h.find(r.key()); former != nil {
		if former.State == attached && former.Network == r.Network && former.Attachment.Netns == r.Attachment.Netns {
			return former.Attached, nil
		}
		if err := h.pay(ctx, former, h.cfg.Timeout); err != nil {
			return pod.Attached{}, fmt.Errorf("its former attachment is still there: %w", err)
		}
	}
	h.warn(r)
	err = h.make(ctx, &r)
	return r.Attached, err
}

// make runs ADD for a record, which it journals before, on the way and after.
func (h *Host) make(ctx context.Context, r *record) error {
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

// warn tells of wishes that no plugin of the network is told.
func (h *Host) warn(r record) {
	if _, ok := r.Caps["portMappings"]; !ok && len(r.Attachment.Ports) > 0 && r.Attachment.IfName == firstLink {
		h.cfg.Log.Warn("cni: the pod's hostPorts are left to the network: no plugin of it has the capability portMappings", "pod", r.Attachment.Pod, "network", r.Network)
	}
}

// Detach detaches a sandbox from all its networks. What fails is owed and
// tried again: see Attachments. What isn't attached is no error.
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

// detachTime is how long a pod that is stopped waits for DEL. What takes longer
// is owed, and then has the whole time of an operation.
const detachTime = 20 * time.Second

// detach detaches or owes. The caller has the sandbox's lock.
func (h *Host) detach(ctx context.Context, sandbox string) {
	for _, r := range h.of(sandbox) {
		if err := h.pay(ctx, r, min(detachTime, h.cfg.Timeout)); err != nil {
			h.cfg.Log.Warn("cni: a detach is owed and will be tried again", "pod", r.Attachment.Pod, "sandbox", pod.Short(sandbox), "error", err)
		}
	}
}

// pay deletes an attachment, or records that this is owed and why. The
// caller's deadline doesn't cut it short, only within does. The caller has the
// sandbox's lock.
func (h *Host) pay(ctx context.Context, r *record, within time.Duration) error {
	debt := *r
	debt.State = deleting
	if debt.Since.IsZero() {
		debt.Since = time.Now()
	}
	// A record that can't be written stops nothing: the one that is there leads
	// to the same.
	_ = h.store(debt, h.records.PutUsingReserve)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	stop := context.AfterFunc(h.closing, cancel)
	defer stop()
	undo := debt
	undo.Attachment.Netns = h.retained.find(r.Attachment)
	if err := h.plugins.del(ctx, &undo); err != nil {
		if err := h.retained.keep(r.Attachment); err != nil {
			h.cfg.Log.Warn("cni: what is owed may not find its network namespace", "sandbox", pod.Short(r.Attachment.Sandbox), "error", err)
		}
		debt.Tries++
		debt.Error = err.Error()
		debt.next = time.Now().Add(pause(debt.Tries))
		unwritten := h.store(debt, h.records.PutUsingReserve)
		select {
		case h.wake <- struct{}{}:
		default:
		}
		return errors.Join(err, unwritten)
	}
	crashpoint.Hit("cni.deleted")
	var err error
	if sandbox := r.Attachment.Sandbox; len(h.of(sandbox)) == 1 { // it was the last one
		err = h.retained.release(sandbox)
	}
	return errors.Join(err, h.forget(&debt))
}
