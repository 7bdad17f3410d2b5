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
	// gcInterval is the time between two runs of GC.
	gcInterval = 30 * time.Minute
	// gcRetry is the pause before GC is retried if an operation is running.
	gcRetry = 2 * time.Second
)

// errBusy means that GC can't run now, because an operation is running.
var errBusy = errors.New("an attachment is being created or deleted: try again")

// runGC runs GC at start and periodically.
func (h *Host) runGC() {
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
			h.cfg.Log.Warn("cni: garbage collection failed", "error", err)
		}
		timer.Reset(gcInterval)
	}
}

// GC makes the plugins of all networks remove the resources of attachments that are not
// valid. Attachments of husk and those recorded by other runtimes on this node are
// valid, debts are not. GC doesn't run unless all attachments are known.
func (h *Host) GC(ctx context.Context) error {
	networks := h.Networks()
	var lists []*libcni.NetworkConfigList
	for _, n := range networks.Networks {
		if !n.List.DisableGC && atLeast(n.List, "1.1.0") {
			lists = append(lists, n.List)
		}
	}
	if len(lists) == 0 || networks.Stale != "" {
		return nil
	}
	if h.damaged {
		return errors.New("not every attachment is known: some records were unreadable")
	}
	// Don't wait for the lock: a waiting writer blocks new readers.
	if !h.gcLock.TryLock() {
		return errBusy
	}
	defer h.gcLock.Unlock()
	foreign, err := foreignAttachments(h.cfg.CacheDir)
	if err != nil {
		return fmt.Errorf("not every attachment is known: %w", err)
	}
	var errs []error
	for _, list := range lists {
		errs = append(errs, h.gc(ctx, list, foreign))
	}
	return joinLine(errs)
}

func (h *Host) gc(ctx context.Context, list *libcni.NetworkConfigList, foreign []*libcni.NetworkAttachment) error {
	valid := []types.GCAttachment{} // never null, which means unknown
	for _, a := range h.Attachments() {
		if a.Network == list.Name && !a.Owed() {
			valid = append(valid, types.GCAttachment{ContainerID: a.Sandbox, IfName: a.IfName})
		}
	}
	for _, a := range foreign {
		if a.Network == list.Name {
			valid = append(valid, types.GCAttachment{ContainerID: a.ContainerID, IfName: a.IfName})
		}
	}
	return h.plugins.gc(ctx, list, valid)
}

// gcMark is the mark of processes that run GC. A GC that survives a killed huskd would
// take the next huskd's attachments for garbage.
func (p *plugins) gcMark() string { return string(p.instance) + "/gc" }

// gc runs GC of all plugins, even if some fail.
func (p *plugins) gc(ctx context.Context, list *libcni.NetworkConfigList, valid []types.GCAttachment) error {
	ctx, cancel := context.WithTimeout(ctx, DefaultTimeout)
	defer cancel()
	// libcni used the second spelling before its issue 1101.
	inject := map[string]any{"cni.dev/valid-attachments": valid, "cni.dev/attachments": valid}
	var errs []error
	for _, plugin := range list.Plugins {
		_, err := p.do(ctx, call{list: list, plugin: plugin, op: opGC, inject: inject, mark: p.gcMark()})
		errs = append(errs, err)
	}
	return joinLine(errs)
}

// foreignAttachments returns the attachments that other runtimes, which use libcni, have
// recorded below cache. It fails if any record can't be read.
func foreignAttachments(cache string) ([]*libcni.NetworkAttachment, error) {
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
		err = fmt.Errorf("%s has files that are not attachment records", dir)
	}
	return list, err
}
