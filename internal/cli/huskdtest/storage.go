package huskdtest

import (
	"context"
	"slices"

	huskv1 "github.com/huskd/husk/api/v1"
)

// storage is the fake of huskd's API of disk space. Each container has a layer of 1 MB and a log of
// 1 kB.
type storage struct {
	huskv1.UnimplementedStorageServer
	h *Huskd
}

// prunable reports whether Prune removes a pod.
func prunable(p *huskv1.Pod) bool {
	return p.Source == "run" && slices.Contains([]string{"Stopped", "Succeeded", "Failed"}, p.Phase)
}

// DiskUsage returns what the images and containers take. There are no volumes.
func (s storage) DiskUsage(context.Context, *huskv1.DiskUsageRequest) (*huskv1.DiskUsageResponse, error) {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	images, containers := &huskv1.DiskUse{Kind: "images"}, &huskv1.DiskUse{Kind: "containers"}
	volumes, logs := &huskv1.DiskUse{Kind: "volumes"}, &huskv1.DiskUse{Kind: "logs"}
	add := func(to *huskv1.DiskUse, item *huskv1.DiskItem, free bool) {
		to.Items, to.Bytes = append(to.Items, item), to.Bytes+item.Bytes
		if item.Active {
			to.Active++
		}
		if free {
			to.ReclaimableBytes += item.Bytes
		}
	}
	for _, i := range s.h.images {
		item := &huskv1.DiskItem{Id: i.Id, Bytes: i.Size, Active: s.h.used(i)}
		if len(i.Tags) > 0 {
			item.Name = i.Tags[0]
		}
		add(images, item, !item.Active)
	}
	for _, p := range s.h.pods {
		for _, c := range p.Containers {
			if c.Id == "" {
				continue
			}
			running := c.State == "Running"
			add(containers, &huskv1.DiskItem{Id: c.Id, Name: c.Name, Pod: key(p), Bytes: 1_000_000, Active: running}, prunable(p))
			add(logs, &huskv1.DiskItem{Id: c.Id, Name: c.Name, Pod: key(p), Bytes: 1000, Active: running}, prunable(p))
		}
	}
	return &huskv1.DiskUsageResponse{Kinds: []*huskv1.DiskUse{images, containers, volumes, logs}}, nil
}

// Prune removes pods that have ended, and images.
func (s storage) Prune(ctx context.Context, req *huskv1.PruneRequest) (*huskv1.PruneResponse, error) {
	out := &huskv1.PruneResponse{}
	s.h.change(func() {
		s.h.pods = slices.DeleteFunc(s.h.pods, func(p *huskv1.Pod) bool {
			if !prunable(p) {
				return false
			}
			out.Pods, out.FreedBytes = append(out.Pods, key(p)), out.FreedBytes+1_001_000*int64(len(p.Containers))
			delete(s.h.given, key(p))
			return true
		})
	})
	r, err := s.h.PruneImages(ctx, &huskv1.PruneImagesRequest{All: req.AllImages})
	if err != nil {
		return nil, err
	}
	out.Images, out.FreedBytes = r.Removed, out.FreedBytes+r.FreedBytes
	slices.Sort(out.Pods)
	return out, nil
}
