package api

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent/objects"
	"github.com/huskd/husk/internal/agent/volume"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/workload"
)

// objectServer serves the API of objects.
type objectServer struct {
	huskv1.UnimplementedObjectsServer
	server  *Server
	volumes volume.Volumes
}

// ListObjects lists the objects that Run has kept.
func (s objectServer) ListObjects(context.Context, *huskv1.ListObjectsRequest) (*huskv1.ListObjectsResponse, error) {
	r := &huskv1.ListObjectsResponse{}
	for _, o := range s.server.Objects.List() {
		r.Objects = append(r.Objects, &huskv1.Object{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, File: o.File, CreatedNs: nanoseconds(o.Created)})
	}
	return r, nil
}

// removeObject removes an object that Run has kept. A claim goes with its files, by RemoveVolume.
func removeObject(ctx context.Context, from *objects.Store, o objects.Object) error {
	if o.Kind == manifest.KindClaim {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("a claim goes with its files: husk volume rm %s/%s removes both", o.Namespace, o.Name))
	}
	return from.Remove(ctx, o)
}

// removal removes what a file declares.
type removal struct {
	server  *Server
	volumes volume.Volumes
	force   bool

	mu   sync.Mutex
	send func(*huskv1.RemoveFileEvent) error // Invariant: called with mu held
}

// RemoveFile removes what a manifest declares: pods first, so that none runs without its policies.
func (s objectServer) RemoveFile(req *huskv1.RemoveFileRequest, stream grpc.ServerStreamingServer[huskv1.RemoveFileEvent]) error {
	file := req.File
	if file == "-" {
		file = "standard input"
	}
	parsed, err := manifest.Parse(req.Manifest, manifest.Origin{File: file, Node: s.server.Node, Source: sourceRun, Policies: s.server.Objects.Policies(), Services: s.server.Services.Accepts()})
	if err != nil {
		return err
	}
	r := &removal{server: s.server, volumes: s.volumes, force: req.Force, send: stream.Send}
	if !req.SkipPods {
		if err := r.pods(stream.Context(), &parsed); err != nil {
			return err
		}
	}
	if req.SkipObjects {
		return nil
	}
	if err := s.server.Services.RemoveFile(stream.Context(), parsed, r.result); err != nil {
		return err
	}
	return r.objects(stream.Context(), &parsed)
}

// report sends that an object was removed, or a note about it.
func (r *removal) report(kind, namespace, name, note string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.send(&huskv1.RemoveFileEvent{Kind: strings.ToLower(kind), Namespace: namespace, Name: name, Note: note})
}

// result reports that an object was removed, unless err says otherwise.
func (r *removal) result(kind, namespace, name string, err error) error {
	switch {
	case err == nil:
		return r.report(kind, namespace, name, "")
	case errdefs.IsNotFound(err):
		return r.report(kind, namespace, name, "is not there")
	}
	return err
}

func (r *removal) pods(ctx context.Context, file *manifest.File) error {
	var all sync.WaitGroup
	failures := make([]error, len(file.Pods)+len(file.Workloads))
	for i := range file.Pods {
		m := &file.Pods[i]
		all.Go(func() { failures[i] = r.result("pod", m.Namespace, m.Name, r.pod(ctx, m.Namespace+"/"+m.Name)) })
	}
	for i, w := range file.Workloads {
		all.Go(func() {
			failures[len(file.Pods)+i] = r.result(string(w.Kind), w.Namespace, w.Name, r.server.Workloads.Remove(ctx, w.Ref))
		})
	}
	all.Wait()
	return errors.Join(failures...)
}

// pod removes the pod with that namespace/name.
func (r *removal) pod(ctx context.Context, name string) error {
	for _, p := range r.server.Agent.List() {
		if p.Name() != name {
			continue
		}
		_, err := r.server.removePod(ctx, &huskv1.RemoveRequest{Name: string(p.Manifest.UID), Force: r.force})
		return err
	}
	return errdefs.ErrNotFound
}

// objects removes objects. The claims that have files stay.
func (r *removal) objects(ctx context.Context, file *manifest.File) error {
	claims, err := r.volumes.Claims()
	if err != nil {
		return err
	}
	kept := func(namespace, name string) error {
		return r.report(manifest.KindClaim, namespace, name, "is kept with its files: husk volume rm "+namespace+"/"+name+" removes them")
	}
	has := map[string]bool{}
	for _, c := range claims {
		has[c.Namespace+"/"+c.Name] = true
		for _, w := range file.Workloads {
			if _, ok := workload.ClaimOrdinal(w, c.Name); ok && c.Namespace == w.Namespace {
				if err := kept(c.Namespace, c.Name); err != nil {
					return err
				}
			}
		}
	}
	for _, doc := range file.Documents {
		if doc.Kind == manifest.KindClaim && has[doc.Namespace+"/"+doc.Name] {
			err = kept(doc.Namespace, doc.Name)
		} else {
			err = r.result(doc.Kind, doc.Namespace, doc.Name, r.server.Objects.Remove(ctx, objects.Object{Kind: doc.Kind, Namespace: doc.Namespace, Name: doc.Name}))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
