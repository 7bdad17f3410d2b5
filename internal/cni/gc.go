package cni

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

const (
	// gcTime is between two rounds of GC.
	gcTime = 30 * time.Minute
	// gcRetry is when a round is tried again that found an operation in flight.
	gcRetry = 2 * time.Second
)

// errBusy says that GC excludes operations, and one is in flight.
var errBusy = errors.New("an attachment is being made or deleted: try again")

// collect runs GC at start and from time to time.
func (h *Host) collect() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-h.closing.Done():
			return
		case <-timer.C:
		}
		err := h.GC(h.closing)
		switch {
		case errors.Is(err, errBusy):
			timer.Reset(gcRetry)
			continue
		case err != nil && h.closing.Err() == nil:
			h.cfg.Log.Warn("cni: garbage collection", "error", err)
		}
		timer.Reset(gcTime)
	}
}

// GC has the plugins of all networks remove what isn't of an attachment that
// is valid: one of ours, or one that another runtime on this node has recorded.
// It does nothing for a network whose attachments can't all be known.
func (h *Host) GC(ctx context.Context) error {
	networks := h.Networks()
	var lists []*libcni.NetworkConfigList
	for _, n := range networks.Networks {
		if !n.List.DisableGC && speaks(n.List, "1.1.0") {
			lists = append(lists, n.List)
		}
	}
	if len(lists) == 0 || networks.Stale != "" {
		return nil
	}
	if h.damaged {
		return errors.New("not every attachment is known: records of some were unreadable")
	}
	// Never wait for the lock: whoever comes after would wait for all before.
	if !h.whole.TryLock() {
		return errBusy
	}
	defer h.whole.Unlock()
	others, err := others(h.cfg.CacheDir)
	if err != nil {
		return fmt.Errorf("not every attachment is known: %w", err)
	}
	var errs []error
	for _, list := range lists {
		errs = append(errs, h.gc(ctx, list, others))
	}
	return lines(errs)
}

func (h *Host) gc(ctx context.Context, list *libcni.NetworkConfigList, others []*libcni.NetworkAttachment) error {
	valid := []types.GCAttachment{} // never null, which would be: not known
	for _, a := range h.Attachments() {
		if a.Network == list.Name && !a.Owed() {
			valid = append(valid, types.GCAttachment{ContainerID: a.Sandbox, IfName: a.IfName})
		}
	}
	for _, a := range others {
		if a.Network == list.Name {
			valid = append(valid, types.GCAttachment{ContainerID: a.ContainerID, IfName: a.IfName})
		}
	}
	return h.plugins.gc(ctx, list, valid)
}

// gcMark marks what GC runs. One that went on behind a huskd that was killed
// would take what the next one attaches for garbage.
func (p *plugins) gcMark() string { return string(p.instance) + "/gc" }

// gc runs GC of all plugins, each whatever became of the others.
func (p *plugins) gc(ctx context.Context, list *libcni.NetworkConfigList, valid []types.GCAttachment) error {
	ctx, cancel := context.WithTimeout(ctx, DefaultTimeout)
	defer cancel()
	// The second is how libcni spelled it before its issue 1101.
	inject := map[string]any{"cni.dev/valid-attachments": valid, "cni.dev/attachments": valid}
	var errs []error
	for _, plugin := range list.Plugins {
		_, err := p.do(ctx, call{list: list, plugin: plugin, op: opGC, inject: inject, mark: p.gcMark()})
		errs = append(errs, err)
	}
	return lines(errs)
}

// others returns the attachments that runtimes with libcni have recorded below
// cache. A record that can't be read makes them unknown.
func others(cache string) ([]*libcni.NetworkAttachment, error) {
	if cache == "" {
		return nil, nil
	}
	dir := filepath.Join(cache, "results")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	list, err := libcni.NewCNIConfigWithCacheDir(nil, cache, nil).GetCachedAttachments("")
	if err == nil && len(list) < len(entries) {
		err = fmt.Errorf("%s has files that are no records of attachments", dir)
	}
	return list, err
}
