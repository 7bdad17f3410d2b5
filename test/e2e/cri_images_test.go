package e2e

import (
	"context"
	"encoding/base64"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/test/node"
)

// TestCRIImages tests every call of the image service.
func TestCRIImages(t *testing.T) {
	t.Parallel()
	c := startCRI(t, node.Flags("--short-names", criRegistry+"/cri"))
	named := func(name string) *runtimeapi.ImageSpec { return &runtimeapi.ImageSpec{Image: name} }
	get := func(name string) *runtimeapi.Image {
		t.Helper()
		r, err := c.images.ImageStatus(c.ctx, &runtimeapi.ImageStatusRequest{Image: named(name), Verbose: true})
		c.must(err)
		if (r.GetImage() != nil) != (r.GetInfo()["info"] != "") {
			t.Errorf("%s: %v", name, r)
		}
		return r.GetImage()
	}
	if get(webImage) != nil {
		t.Error("an image that was never pulled is reported")
	}
	id := c.pull(webImage)
	img := get(webImage)
	if img.GetId() != id || img.GetSize() == 0 || len(img.GetRepoTags()) != 1 || len(img.GetRepoDigests()) != 1 || img.GetPinned() || img.GetUid() == nil {
		t.Errorf("pulled: %v", img)
	}
	for _, name := range []string{id, id[:20], img.GetRepoDigests()[0], strings.TrimPrefix(id, "sha256:")} {
		if got := get(name); got.GetId() != id {
			t.Errorf("%s: %v", name, got)
		}
	}
	if again := c.pull(img.GetRepoDigests()[0]); again != id {
		t.Errorf("pulled by its digest, its ID is %s, want %s", again, id)
	}
	if short := c.pull("web:1"); short != id {
		t.Errorf("pulled by a short name, its ID is %s, want %s", short, id)
	}
	for name, want := range map[string]int{"": 1, webImage: 1, usersImage: 0} {
		r, err := c.images.ListImages(c.ctx, &runtimeapi.ListImagesRequest{Filter: &runtimeapi.ImageFilter{Image: named(name)}})
		c.must(err)
		if len(r.GetImages()) != want {
			t.Errorf("filter %q: %v", name, r)
		}
		stream, err := c.images.StreamImages(c.ctx, &runtimeapi.StreamImagesRequest{Filter: &runtimeapi.ImageFilter{Image: named(name)}})
		c.must(err)
		n := 0
		for part, err := stream.Recv(); err == nil; part, err = stream.Recv() {
			n += len(part.GetImages())
		}
		if n != want {
			t.Errorf("filter %q: %d streamed", name, n)
		}
	}
	fs, err := c.images.ImageFsInfo(c.ctx, &runtimeapi.ImageFsInfoRequest{})
	c.must(err)
	if u := fs.GetImageFilesystems(); len(u) != 1 || u[0].GetUsedBytes().GetValue() == 0 || u[0].GetFsId().GetMountpoint() == "" || u[0].GetTimestamp() == 0 {
		t.Errorf("file systems: %v", fs)
	}
	c.subtest(t, "bad", badImages)
	c.subtest(t, "logins", logins)
	c.subtest(t, "volumes", imageVolumes)
	c.subtest(t, "declared", declaredVolumes)
	c.subtest(t, "removal", func(t *testing.T, c *criNode) {
		pod := c.pod()
		c.run(pod, forever)
		_, err := c.images.RemoveImage(c.ctx, &runtimeapi.RemoveImageRequest{Image: named(webImage)})
		c.must(err)
		if in := get(webImage); in != nil {
			t.Errorf("the image still has the removed name: %v", in)
		}
		if in := get(id); len(in.GetRepoTags()) > 0 || in.GetId() != id {
			t.Errorf("the image in use, after removal of its name: %v", in)
		}
		_, err = c.RemovePodSandbox(c.ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})
		c.must(err)
		for range 2 {
			_, err = c.images.RemoveImage(c.ctx, &runtimeapi.RemoveImageRequest{Image: named(id)})
			c.must(err)
		}
		if get(id) != nil {
			t.Error("the image is still reported by its ID")
		}
	})
	c.end()
}

func badImages(t *testing.T, c *criNode) {
	pull := func(ctx context.Context, name string) error {
		return ignore(c.images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: name}}))
	}
	for name, want := range map[string]struct {
		code  codes.Code
		words string
	}{
		"":                                {codes.InvalidArgument, "empty"},
		"web:none":                        {codes.NotFound, "no tag"}, // of --short-names
		"Upper/Case":                      {codes.InvalidArgument, "malformed"},
		criRegistry + "/a b":              {codes.InvalidArgument, "malformed"},
		criRegistry + "/a\nb":             {codes.InvalidArgument, "malformed"},
		criRegistry + "/a@sha256:12":      {codes.InvalidArgument, "malformed"},
		criRegistry + "/../a":             {codes.InvalidArgument, "malformed"},
		criRegistry + "/cri/none:1":       {codes.NotFound, "not"},
		criRegistry + "/cri/web:none":     {codes.NotFound, "no tag"},
		strings.Repeat("a", 300) + "/b:1": {codes.InvalidArgument, "malformed"},
		criRegistry + "/" + strings.Repeat("a", 3000): {codes.InvalidArgument, ""},
	} {
		err := pull(c.ctx, name)
		if name == criRegistry+"/"+strings.Repeat("a", 3000) {
			if err == nil {
				t.Error("a name of 3000 characters is accepted")
			}
			continue
		}
		fails(t, err, want.code, want.words)
	}
	ctx, cancel := context.WithTimeout(c.ctx, time.Microsecond)
	defer cancel()
	fails(t, pull(ctx, usersImage), codes.DeadlineExceeded, "")
	_, err := c.images.RemoveImage(c.ctx, &runtimeapi.RemoveImageRequest{})
	fails(t, err, codes.InvalidArgument, "empty")
}

// logins checks that credentials are sent to the registry that they are for and to no other.
func logins(t *testing.T, c *criNode) {
	encoded := base64.StdEncoding.EncodeToString([]byte(registryUser + ":" + registryPassword))
	for name, l := range map[string]struct {
		auth *runtimeapi.AuthConfig
		code codes.Code
	}{
		"none":                    {nil, codes.Unauthenticated},
		"wrong":                   {&runtimeapi.AuthConfig{Username: registryUser, Password: "x"}, codes.Unauthenticated},
		"right":                   {&runtimeapi.AuthConfig{Username: registryUser, Password: registryPassword}, codes.OK},
		"encoded":                 {&runtimeapi.AuthConfig{Auth: encoded}, codes.OK},
		"encoded wrongly":         {&runtimeapi.AuthConfig{Auth: "%"}, codes.InvalidArgument},
		"encoded without a colon": {&runtimeapi.AuthConfig{Auth: base64.StdEncoding.EncodeToString([]byte("x"))}, codes.InvalidArgument},
		"for this server":         {&runtimeapi.AuthConfig{Username: registryUser, Password: registryPassword, ServerAddress: "https://" + criRegistry + "/v1/"}, codes.OK},
		"for another server":      {&runtimeapi.AuthConfig{Username: registryUser, Password: registryPassword, ServerAddress: "other.test"}, codes.Unauthenticated},
		"registry token":          {&runtimeapi.AuthConfig{RegistryToken: "x"}, codes.Unauthenticated},
	} {
		r, err := c.images.PullImage(c.ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: privateImage}, Auth: l.auth})
		if l.code != codes.OK {
			if err == nil || l.code != codes.Unauthenticated {
				fails(t, err, l.code, "")
			}
			if err != nil && strings.Contains(err.Error(), registryPassword) {
				t.Errorf("login %s: the error contains the password: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("login %s: %v", name, err)
			continue
		}
		_, err = c.images.RemoveImage(c.ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: r.GetImageRef()}})
		c.must(err)
	}
}

// imageVolumes tests mounts of images into containers.
func imageVolumes(t *testing.T, c *criNode) {
	users := c.pull(usersImage)
	pod := c.pod()
	with := func(m *runtimeapi.Mount) func(*runtimeapi.ContainerConfig) {
		return func(k *runtimeapi.ContainerConfig) { k.Mounts = append(k.Mounts, m) }
	}
	volume := &runtimeapi.Mount{ContainerPath: "/volume", Image: &runtimeapi.ImageSpec{Image: users}, Readonly: true}
	id := c.run(pod, forever, with(volume), with(&runtimeapi.Mount{ContainerPath: "/part", Image: &runtimeapi.ImageSpec{Image: usersImage}, ImageSubPath: "etc"}))
	if got := c.sh(id, "grep -c alice /volume/etc/passwd /part/passwd"); !strings.Contains(got, "/volume/etc/passwd:1") || !strings.Contains(got, "/part/passwd:1") {
		t.Errorf("the volumes contain %s", got)
	}
	if got := c.sh(id, "touch /volume/x /part/x 2>&1; true"); strings.Count(got, "Read-only") != 2 {
		t.Errorf("writing to the volumes: %s", got)
	}
	for _, m := range c.status(id).GetMounts() {
		if m.GetImage().GetImageRef() != users || m.GetImage().GetImage() != users {
			t.Errorf("mount: %v", m)
		}
	}
	for words, m := range map[string]*runtimeapi.Mount{
		"has no \"none\"": {ContainerPath: "/v", Image: volume.GetImage(), ImageSubPath: "none"},
		"not found":       {ContainerPath: "/v", Image: &runtimeapi.ImageSpec{Image: criRegistry + "/none:1"}},
	} {
		_, err := c.CreateContainer(c.ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: c.containerConfig(forever, with(m))})
		fails(t, err, codes.NotFound, words)
		// The kubelet counts these errors by the beginning of their message.
		if text := status.Convert(err).Message(); !strings.HasPrefix(text, "ImageVolumeMountFailed") {
			t.Errorf("the error of an image volume is %q", text)
		}
	}
	for words, m := range map[string]*runtimeapi.Mount{
		"choose one": {ContainerPath: "/v", HostPath: "/etc", Image: volume.GetImage()},
		"empty":      {ContainerPath: "/v", Image: &runtimeapi.ImageSpec{}},
	} {
		_, err := c.CreateContainer(c.ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: c.containerConfig(forever, with(m))})
		fails(t, err, codes.InvalidArgument, words)
	}
	_, err := c.RemovePodSandbox(c.ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})
	c.must(err)
	_, err = c.images.RemoveImage(c.ctx, &runtimeapi.RemoveImageRequest{Image: volume.GetImage()})
	c.must(err)
}

// declaredVolumes: the volumes that an image declares exist, and can be written where the root file
// system can't.
func declaredVolumes(t *testing.T, c *criNode) {
	image := c.pull(criRegistry + "/cri/volumes:1")
	user := &runtimeapi.Int64Value{Value: 1000}
	using := func(readonly bool) func(*runtimeapi.ContainerConfig) {
		return func(k *runtimeapi.ContainerConfig) {
			k.Image.Image = image
			k.Linux = &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{RunAsUser: user, ReadonlyRootfs: readonly}}
		}
	}
	c.must(os.Chmod(c.Dir, 0o711)) // the root of a user namespace must be able to reach its root file system
	pods := map[string]string{"": c.pod(), "user namespace": c.pod(withUserNamespace)}
	for kind, pod := range pods {
		for _, readonly := range []bool{false, true} {
			id := c.run(pod, forever, using(readonly))
			if got, want := c.sh(id, "stat -c %u:%g:%a /data/new /tmp; touch /data/new/x /tmp/x && ls /data/new"), "1000:1000:755\n0:0:1777\nx"; got != want {
				t.Errorf("%s, read-only %v: the volumes are %q, want %q", kind, readonly, got, want)
			}
			if got := c.sh(id, "touch /home/alice/x 2>&1; true"); strings.Contains(got, "Read-only") != readonly {
				t.Errorf("%s, read-only %v: writing to the root file system: %s", kind, readonly, got)
			}
		}
		_, err := c.RemovePodSandbox(c.ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})
		c.must(err)
	}
	_, err := c.images.RemoveImage(c.ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: image}})
	c.must(err)
}
