//go:build vm

package guest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/test/node"
)

// firstID is the host ID of the root user in the pod's user namespace.
const firstID = 1 << 24

func ids() []*runtimeapi.IDMapping {
	return []*runtimeapi.IDMapping{{HostId: firstID, Length: 1 << 16}}
}

func ownUsers(p *runtimeapi.PodSandboxConfig) {
	p.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtimeapi.UserNamespace{Uids: ids(), Gids: ids()}
}

// disk mounts a disk file system until the test ends. Unlike the initramfs, it supports idmapped
// mounts and project quotas.
func disk(t *testing.T) string {
	t.Helper()
	fatal := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	at, err := os.MkdirTemp("", "disk-")
	fatal(err)
	t.Cleanup(func() { fatal(os.Remove(at)) })
	fatal(os.Chmod(at, 0o711)) // nobody passes through it too
	file, err := os.CreateTemp(t.TempDir(), "disk")
	fatal(err)
	defer file.Close()
	fatal(file.Truncate(128 * mebi))
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-O", "quota,project", file.Name()}, {"modprobe", "loop"}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	fatal(err)
	defer control.Close()
	number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	fatal(err)
	device := fmt.Sprintf("/dev/loop%d", number)
	loop, err := os.OpenFile(device, os.O_RDWR, 0)
	fatal(err)
	defer loop.Close()
	// The loop device is free again once it is unmounted.
	fatal(unix.IoctlLoopConfigure(int(loop.Fd()), &unix.LoopConfig{Fd: uint32(file.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}))
	fatal(unix.Mount(device, at, "ext4", 0, "prjquota"))
	t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Errorf("%s is still used: %v", at, err)
		}
	})
	return at
}

// apart is a container of a pod whose root user is unprivileged on the node.
type apart struct {
	n       *node.Node
	pod, id string
}

// runApart runs such a container and checks it from inside and from the node.
func runApart(t *testing.T, n *node.Node) apart {
	t.Helper()
	c := dial(t, n.Socket(), n.Dir)
	c.must(os.Chmod(n.Dir, 0o711)) // the pod's root must find its way to its root file system
	status, err := c.Status(c.ctx, &runtimeapi.StatusRequest{})
	c.must(err)
	for _, h := range status.GetRuntimeHandlers() {
		if !h.GetFeatures().GetUserNamespaces() {
			t.Errorf("handler %q has no user namespaces", h.GetName())
		}
	}
	volume, private := filepath.Join(n.Dir, "volume"), filepath.Join(n.Dir, "private")
	for file, owner := range map[string]int{volume + "/theirs": 33, private + "/root": 0} {
		c.must(errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o600), os.Chown(file, owner, owner)))
	}
	pod, config := c.sandbox("users", "", ownUsers)
	id, err := c.create(pod, config, forever, limited(50_000, 32*mebi), func(k *runtimeapi.ContainerConfig) {
		k.Linux.SecurityContext.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"ALL"}}
		k.Mounts = []*runtimeapi.Mount{
			{HostPath: volume, ContainerPath: "/data", UidMappings: ids(), GidMappings: ids()},
			{HostPath: private, ContainerPath: "/private"},
		}
	})
	c.must(err)
	c.start(id)
	c.says(id, map[string]string{
		"id -u; cat /proc/self/uid_map | tr -s ' '":               fmt.Sprintf("0\n 0 %d 65536", firstID),
		"stat -c %u / /bin/sh /etc/hosts /dev/shm /tmp":           "0\n0\n0\n0\n0",
		"stat -c %u /data /data/theirs":                           "0\n33",
		"touch /data/new /made && stat -c %u /data/new /made":     "0\n0",
		"stat -c %u /private/root; cat /private/root":             "65534\ncat: can't open '/private/root': Permission denied",
		"(echo 1 >/proc/sys/kernel/panic) 2>/dev/null || echo no": "no",
		"cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/cpu.max":    "33554432\n50000 100000",
		// Limits are those of the node.
		"(echo max >/sys/fs/cgroup/memory.max) 2>/dev/null || echo no": "no",
		"dd if=/dev/zero of=/dev/null bs=64M count=1; echo $?":         "Killed\n137",
	})
	owner := func(path string) uint32 {
		info, err := os.Stat(path)
		c.must(err)
		return info.Sys().(*syscall.Stat_t).Uid
	}
	for path, want := range map[string]uint32{
		filepath.Join(volume, "new"):                          0,
		filepath.Join(volume, "theirs"):                       33,
		filepath.Join(n.Root, "containers", id, "upper/made"): firstID,
		n.Path(fmt.Sprintf("/proc/%d", c.pid(id))):            firstID,
	} {
		if got := owner(path); got != want {
			t.Errorf("on the node, %s is owned by %d, want %d", path, got, want)
		}
	}
	return apart{n, pod, id}
}

// end checks that the container survives a restart of huskd, and removes it.
func (a apart) end(t *testing.T) {
	t.Helper()
	c := dial(t, a.n.Socket(), a.n.Dir)
	c.says(a.id, map[string]string{"id -u; cat /sys/fs/cgroup/memory.max": "0\n33554432"})
	c.remove(a.pod)
}

const usersManifest = `
apiVersion: v1
kind: Pod
metadata: {name: apart}
spec:
  hostUsers: false
  terminationGracePeriodSeconds: 0
  securityContext: {fsGroup: 2000}
  volumes: [{name: disk, emptyDir: {}}]
  containers:
  - name: server
    image: localhost/web:1
    volumeMounts: [{name: disk, mountPath: /disk}]
    resources: {limits: {cpu: 500m, memory: 32Mi}}
`

// checkHostUsers runs a pod whose user namespace huskd chooses.
func checkHostUsers(t *testing.T, n *node.Node) {
	t.Helper()
	n.MustHusk("run", "--wait", write(t, n, "apart.yaml", usersManifest))
	got := n.MustHusk("exec", "apart", "--", "/bin/sh", "-c", "touch /disk/new; stat -c %u:%g /disk/new; cat /proc/self/uid_map")
	if want := fmt.Sprintf("0:2000 0 %d 65536", 1<<30); strings.Join(strings.Fields(got), " ") != want {
		t.Errorf("it says %q, want %q", got, want)
	}
	pod := inspect(t, n, "apart")
	for file, want := range map[string]string{"memory.max": "33554432", "cpu.max": "50000 100000"} {
		for _, cgroup := range []string{pod.Sandbox.Cgroup, pod.Containers[0].Cgroup} {
			if got := setting(t, cgroup, file); got != want {
				t.Errorf("%s of cgroup %s is %q, want %q", file, cgroup, got, want)
			}
		}
	}
	n.MustHusk("rm", "-f", "apart")
}
