package daemon

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/podlogs"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/agent/volume"
	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/housekeeping"
	"github.com/huskd/husk/internal/logs"
	"github.com/huskd/husk/internal/manifest/criconfig"
)

func (d *daemon) volumes() volume.Volumes {
	return volume.Volumes{Root: d.cfg.Root, State: d.cfg.State}
}

func podLogs(cfg config.Config) podlogs.Dirs {
	return podlogs.Dirs{Root: filepath.Join(cfg.Root, "pods"), Pods: cfg.PodLogs, Links: filepath.Join(filepath.Dir(cfg.PodLogs), "containers")}
}

// linkLogs restores the links to the logs of the agent's containers: huskd or the host may have
// stopped before they were made or removed.
func linkLogs(logs podlogs.Dirs, list []container.Status) error {
	err := logs.Sweep()
	for _, st := range list {
		if st.Config.GetLabels()[agent.Label] != "" && st.Log != "" {
			err = errors.Join(err, logs.Link(st.Log, st.ID))
		}
	}
	return err
}

// housekeeper keeps the disk from filling up.
func (d *daemon) housekeeper() *housekeeping.Housekeeper {
	return housekeeping.New(housekeeping.Config{
		Containers: d.containers,
		Ours:       func(st container.Status) bool { return st.Config.GetLabels()[agent.Label] != "" },
		Rotation:   logs.Rotation{MaxSize: int64(d.cfg.LogMaxSize) << 20, MaxFiles: d.cfg.LogMaxFiles},
		Images:     d.images, Disk: d.disk(), Log: d.log,
		Storage: housekeeping.Storage{
			Pods:     func() []*corev1.Pod { return evictable(d.agent.List()) },
			EmptyDir: d.volumes().EmptyDir, Layers: d.writtenDirs, Evict: d.evict,
		},
	})
}

// evictable returns the pods that are running or starting and may be evicted. Like the kubelet, it
// leaves out critical pods.
func evictable(list []agent.Pod) (pods []*corev1.Pod) {
	for _, p := range list {
		if strings.HasPrefix(p.Source, string(source.API)) && criconfig.Critical(p.Manifest) {
			continue
		}
		if p.Want == podplan.Run && (p.Status.Phase == podplan.PhaseRunning || p.Status.Phase == podplan.PhasePending) {
			pods = append(pods, p.Manifest)
		}
	}
	return pods
}

// writtenDirs returns what a container writes to on disk: the layers of its runs, their termination
// messages, and its logs.
func (d *daemon) writtenDirs(pod *corev1.Pod, name string) (dirs []string) {
	p, err := d.agent.Get(string(pod.UID))
	if err != nil {
		return nil // it is gone
	}
	for _, st := range p.Runs(name) {
		message := agent.MessageFile(name, st.Config.GetMetadata().GetAttempt())
		dirs = append(dirs, filepath.Join(d.containers.Layer(st.ID), "upper"), d.volumes().MessagePath(string(pod.UID), message))
		if logs := filepath.Dir(st.Log); st.Log != "" && !slices.Contains(dirs, logs) {
			dirs = append(dirs, logs)
		}
	}
	return dirs
}

func (d *daemon) evict(uid, message string) error {
	return d.agent.Evict(uid, podplan.ReasonEvicted, message)
}

func (d *daemon) disk() housekeeping.Disk {
	return housekeeping.Disk{
		High: d.cfg.ImageHigh, Low: d.cfg.ImageLow, MinAge: time.Duration(d.cfg.ImageAge) * time.Second, Pinned: d.cfg.Pinned,
		Usage: func() (used, all uint64, err error) {
			var st unix.Statfs_t
			if err := unix.Statfs(d.cfg.Root, &st); err != nil {
				return 0, 0, fmt.Errorf("size of the disk of %s: %w", d.cfg.Root, err)
			}
			// Blocks reserved for root count neither as used nor as available.
			used = (st.Blocks - st.Bfree) * uint64(st.Bsize)
			return used, used + st.Bavail*uint64(st.Bsize), nil
		},
	}
}

// removeOrphans removes the directories of pods that have no record, and logs each.
func (d *daemon) removeOrphans() {
	var uids []string
	for _, p := range d.agent.List() {
		uids = append(uids, string(p.Manifest.UID))
	}
	d.orphans = map[string]error{}
	former := filepath.Join(d.cfg.Root, "logs") // before there was pod-logs-dir
	if err := podLogs(d.cfg).Adopt(former, uids); err != nil {
		d.log.Error("orphaned logs of pods were kept", "path", former, "error", err)
		d.orphans[former] = err
	}
	for _, o := range housekeeping.Orphans(d.volumes(), podLogs(d.cfg), uids) {
		if o.Err != nil {
			d.log.Error("orphaned pod directory was kept", "path", o.Path, "error", o.Err)
			d.orphans[o.Path] = o.Err
			continue
		}
		d.log.Warn("orphaned pod directory was removed", "path", o.Path)
	}
}
