package daemon

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/oci/spec"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// images implements container.Images on the image store.
type images struct{ *image.Store }

func (i images) Image(_ context.Context, name string) (container.Image, error) {
	img, err := i.Get(name)
	if err != nil {
		return container.Image{}, err
	}
	lower, err := i.Rootfs(img.ID)
	out := container.Image{ID: img.ID, Name: name, Lower: lower, Config: img.Config}
	if len(img.Tags) > 0 {
		out.Name = img.Tags[0]
	}
	return out, err
}

// sandboxes implements container.Sandboxes. It refers to daemon because the owners of sandboxes and
// containers need each other.
type sandboxes struct{ d *daemon }

func (s sandboxes) Sandbox(id string) (container.Sandbox, error) {
	st, err := s.d.sandboxes.Get(id)
	if err != nil {
		return container.Sandbox{}, err
	}
	if st.State != sandboxstate.Ready {
		return container.Sandbox{}, errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("sandbox %s of pod %s is %s: no container can be created in it", pod.Short(id), st.Ref(), st.State))
	}
	files := s.d.sandboxes.Files(st)
	out := container.Sandbox{
		Config:     st.Config,
		Handler:    st.Handler,
		Namespaces: spec.Namespaces{Net: files.Net, IPC: files.IPC, UTS: files.UTS, User: files.User},
		Files:      spec.Files{Hosts: files.Hosts, ResolvConf: files.ResolvConf, Hostname: files.Hostname, Shm: files.Shm},
		Cgroup:     s.d.sandboxes.Cgroup(st),
		Labels:     st.Labels,
	}
	shared := st.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid() == runtimeapi.NamespaceMode_POD
	if st.Infra != nil && shared {
		out.Namespaces.PID = fmt.Sprintf("/proc/%d/ns/pid", st.Infra.PID)
	}
	return out, nil
}

// Pod returns the pod of a sandbox, or the zero Ref if there is no such sandbox.
func (s sandboxes) Pod(id string) pod.Ref {
	st, err := s.d.sandboxes.Get(id)
	if err != nil {
		return pod.Ref{}
	}
	return st.Ref()
}
