package housekeeping

import (
	"cmp"
	"context"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/huskd/husk/internal/image"
)

// Disk is the file system of the images and its limits.
type Disk struct {
	// Usage returns the used bytes, and all bytes that can be used.
	Usage func() (used, all uint64, err error)
	// High is the usage in percent at which images are removed until it is below Low. At 100 none
	// are ever removed.
	High, Low int
	// MinAge is how long an image must have been known before it is removed.
	MinAge time.Duration
	// Pinned are path.Match patterns for the names of images that are never removed.
	Pinned []string
}

// imageTimes has the times when an image was first seen and last seen in use.
type imageTimes struct{ first, used time.Time }

// collectImages removes unused images when the disk is too full. It starts with those that have not
// been used for the longest time.
func (h *Housekeeper) collectImages(ctx context.Context, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.Images.List()
	h.images = trackImages(h.images, all, now)
	used, size, err := h.Disk.Usage()
	if err != nil || size == 0 || h.Disk.High >= 100 || !atLeastPercent(used, size, h.Disk.High) {
		h.warnedFull = h.warnedFull && err != nil
		return
	}
	for _, img := range h.Disk.candidates(all, h.images, now) {
		gone, err := h.Images.Remove(ctx, img.ID, false)
		if err != nil {
			continue // it is in use now
		}
		h.Log.Info("housekeeping: removed an image, as the disk is nearly full", "image", strings.Join(gone, " "), "used", percent(used, size))
		if used, size, err = h.Disk.Usage(); err != nil || !atLeastPercent(used, size, h.Disk.Low) {
			return
		}
	}
	if !h.warnedFull && atLeastPercent(used, size, h.Disk.High) {
		h.Log.Warn("housekeeping: the disk of the images stays nearly full: all remaining images are in use, pinned or new", "used", percent(used, size))
		h.warnedFull = true
	}
}

// RemoveUnusedImages removes all images that may be removed when the disk is full.
func (h *Housekeeper) RemoveUnusedImages(ctx context.Context) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	all := h.Images.List()
	h.images = trackImages(h.images, all, now)
	for _, img := range h.Disk.candidates(all, h.images, now) {
		if gone, err := h.Images.Remove(ctx, img.ID, false); err == nil {
			h.Log.Info("housekeeping: removed an image, as the node runs short of disk space", "image", strings.Join(gone, " "))
		}
	}
}

func percent(used, all uint64) int { return int(float64(used) / float64(all) * 100) }

// atLeastPercent reports whether at least limit percent are used.
func atLeastPercent(used, all uint64, limit int) bool {
	return float64(used) >= float64(all)/100*float64(limit)
}

// trackImages returns the times of the images, updated from before.
func trackImages(before map[string]imageTimes, images []image.Image, now time.Time) map[string]imageTimes {
	after := map[string]imageTimes{}
	maps.Copy(after, before)
	here := map[string]bool{}
	for _, img := range images {
		here[img.ID] = true
		s, known := after[img.ID]
		if !known {
			s.first = now
		}
		if img.InUse {
			s.used = now
		}
		after[img.ID] = s
	}
	maps.DeleteFunc(after, func(id string, _ imageTimes) bool { return !here[id] })
	return after
}

// candidates returns the images that may be removed, in the order of their removal.
func (d Disk) candidates(images []image.Image, known map[string]imageTimes, now time.Time) []image.Image {
	var out []image.Image
	for _, img := range images {
		if !img.InUse && !d.IsPinned(img) && now.Sub(known[img.ID].first) >= d.MinAge {
			out = append(out, img)
		}
	}
	slices.SortStableFunc(out, func(a, b image.Image) int {
		x, y := known[a.ID], known[b.ID]
		return cmp.Or(x.used.Compare(y.used), x.first.Compare(y.first), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// IsPinned reports whether an image is never removed.
func (d Disk) IsPinned(img image.Image) bool {
	for _, name := range slices.Concat(img.Tags, img.Digests) {
		for _, pattern := range d.Pinned {
			if ok, _ := path.Match(pattern, name); ok {
				return true
			}
		}
	}
	return false
}
