package storageapi

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/manifest"
)

// Prune removes what nothing uses or declares. What can't be removed is a problem in the answer, so
// that the rest is still reported.
func (s *Server) Prune(ctx context.Context, req *huskv1.PruneRequest) (*huskv1.PruneResponse, error) {
	out := &huskv1.PruneResponse{}
	s.prunePods(ctx, out)
	if req.Volumes {
		s.pruneVolumes(out)
	}
	s.pruneImages(ctx, req.AllImages, out)
	return out, nil
}

func (s *Server) prunePods(ctx context.Context, out *huskv1.PruneResponse) {
	var all sync.WaitGroup
	var mu sync.Mutex // guards out
	for _, p := range s.Agent.List() {
		if !prunable(p) {
			continue
		}
		all.Go(func() {
			bytes := s.podBytes(ctx, p)
			now, err := s.Agent.Get(string(p.Manifest.UID))
			if err == nil && !prunable(now) { // it was started again meanwhile
				return
			}
			if err == nil {
				err = s.Agent.Remove(ctx, string(p.Manifest.UID))
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errdefs.IsNotFound(err): // somebody else has removed it
			case err != nil:
				out.Problems = append(out.Problems, problem("pod", p.Name(), err))
			default:
				out.Pods, out.FreedBytes = append(out.Pods, p.Name()), out.FreedBytes+bytes
			}
		})
	}
	all.Wait()
	slices.Sort(out.Pods)
	slices.Sort(out.Problems)
}

// podBytes returns what goes from the disk with a pod.
func (s *Server) podBytes(ctx context.Context, p agent.Pod) (bytes int64) {
	for _, st := range p.Containers {
		bytes += s.layer(ctx, st) + logSize(st)
	}
	for i := range p.Manifest.Spec.Volumes {
		if v := &p.Manifest.Spec.Volumes[i]; manifest.OnDisk(v) {
			bytes += s.emptyDir(ctx, p, v.Name)
		}
	}
	return bytes
}

// pruneVolumes removes the claims that nothing refers to. The volume package refuses to remove one
// that a pod has begun to use meanwhile.
func (s *Server) pruneVolumes(out *huskv1.PruneResponse) {
	claims, err := s.Volumes.Claims()
	if err != nil {
		out.Problems = append(out.Problems, "volumes: "+err.Error())
		return
	}
	pods, workloads, declared := s.Agent.List(), s.templates(), s.Objects.All()
	for _, c := range claims {
		name := c.Namespace + "/" + c.Name
		switch usedBy(c, pods, workloads, declared, func(agent.Pod) bool { return false }) {
		case byManifest:
			out.DeclaredVolumes = append(out.DeclaredVolumes, name)
		case byNothing:
			bytes := s.claim(c)
			err := s.Volumes.RemoveClaim(c.Namespace, c.Name)
			switch {
			case errdefs.IsNotFound(err), errdefs.IsFailedPrecondition(err):
			case err != nil:
				out.Problems = append(out.Problems, problem("volume", name, err))
			default:
				out.Volumes, out.FreedBytes = append(out.Volumes, name), out.FreedBytes+bytes
			}
		}
	}
}

// pruneImages removes images, while it holds those that manifests declare: their pods may not have
// containers now, such as those of a CronJob, and a loaded image can't be pulled again.
func (s *Server) pruneImages(ctx context.Context, all bool, out *huskv1.PruneResponse) {
	for id := range s.wanted(s.Agent.List(), s.templates()) {
		if release, err := s.Images.Hold(id, "a manifest"); err == nil {
			defer release()
		}
	}
	report, err := s.Images.Prune(ctx, all)
	if err != nil {
		out.Problems = append(out.Problems, strings.TrimPrefix(err.Error(), "prune "))
	}
	out.Images, out.FreedBytes = report.Removed, out.FreedBytes+report.Freed
}
