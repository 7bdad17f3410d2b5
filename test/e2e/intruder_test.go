package e2e

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/test/node"
)

// intruderEnv makes the test binary an intruder. Its value are directories, separated by colons.
const intruderEnv = "HUSK_TEST_INTRUDER"

// intrusion is what an intruder has tried, and what it has got: a verb and a path.
type intrusion struct{ Tried, Got []string }

// intrude finds all files below the directories as root. Then, as a user with no right on this
// node, it tries to use each, the processes, and the abstract sockets. It prints an intrusion.
func intrude() error {
	var tried []string
	for _, dir := range strings.Split(os.Getenv(intruderEnv), ":") {
		if err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			switch {
			case path == "/run/proc", path == "/run/netns": // the node's own, and iproute2's
				return filepath.SkipDir
			case os.IsNotExist(err): // a temporary file
				return nil
			}
			tried = append(tried, path)
			return err
		}); err != nil {
			return err
		}
	}
	modes := map[string]fs.FileMode{}
	for _, path := range tried {
		if info, err := os.Lstat(path); err == nil {
			modes[path] = info.Mode()
		}
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	sockets, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return err
	}
	const nobody = 65534
	if err := syscall.Setgroups(nil); err != nil {
		return err
	}
	if err := syscall.Setresgid(nobody, nobody, nobody); err != nil {
		return err
	}
	if err := syscall.Setresuid(nobody, nobody, nobody); err != nil {
		return err
	}
	status, err := os.ReadFile("/proc/thread-self/status")
	if err != nil || !strings.Contains(string(status), "\nCapEff:\t0000000000000000\n") {
		return fmt.Errorf("the intruder has capabilities: %w", err)
	}
	var got []string
	try := func(verb, path string, err error) {
		if err == nil {
			got = append(got, verb+" "+path)
		}
	}
	open := func(path string, flags int) error {
		fd, err := unix.Open(path, flags|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		_ = unix.Close(fd)
		return err
	}
	access := func(path string, mode uint32) error { return unix.Faccessat(unix.AT_FDCWD, path, mode, 0) }
	for _, path := range tried {
		switch mode := modes[path]; {
		case mode.IsDir():
			try("list", path, open(path, unix.O_RDONLY|unix.O_DIRECTORY))
			try("write", path, access(path, unix.W_OK))
			try("search", path, access(path, unix.X_OK))
		case mode&fs.ModeSymlink != 0:
			_, err := os.Readlink(path)
			try("read", path, err)
		case mode&fs.ModeSocket != 0:
			try("connect", path, connect(path))
		default:
			try("read", path, open(path, unix.O_RDONLY))
			try("write", path, open(path, unix.O_WRONLY))
			try("execute", path, access(path, unix.X_OK))
		}
	}
	for _, process := range processes {
		if filepath.Base(process) == fmt.Sprint(os.Getpid()) {
			continue
		}
		tried = append(tried, process)
		for _, link := range []string{"root", "cwd", "exe", "fd", "map_files"} {
			path := filepath.Join(process, link)
			if link == "root" || link == "cwd" || link == "exe" {
				_, err := os.Readlink(path)
				try("read", path, err)
			}
			fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
			if link != "fd" && link != "map_files" {
				try("open", path, err)
			} else {
				_, err := os.ReadDir(path)
				try("list", path, err)
			}
			_ = unix.Close(fd)
		}
	}
	for line := range strings.Lines(string(sockets)) {
		if fields := strings.Fields(line); strings.HasPrefix(fields[len(fields)-1], "@") {
			tried = append(tried, fields[len(fields)-1])
			try("connect", fields[len(fields)-1], connect(fields[len(fields)-1]))
		}
	}
	return json.NewEncoder(os.Stdout).Encode(intrusion{tried, got})
}

// connect connects to a Unix socket of any type. The name of an abstract one begins with @.
func connect(name string) (err error) {
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET, unix.SOCK_DGRAM} {
		fd, socketErr := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
		if socketErr != nil {
			return socketErr
		}
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: name})
		_ = unix.Close(fd)
		if err != unix.EPROTOTYPE {
			return err
		}
	}
	return err
}

// otherUser lets another user of the node try all files of huskd, and fails if it gets at anything.
// What the patterns describe must be among what it tries.
func (c *criNode) otherUser(when string, patterns ...string) {
	c.t.Helper()
	permitted := []string{
		// The root users of user namespaces pass through these. Nobody can list them.
		"search " + c.Root, "search " + c.Root + "/containers", "search " + c.State, "search " + c.State + "/sandboxes",
		"list /run", "search /run", "write /run", // of the test
	}
	self, err := os.Executable()
	c.must(err)
	cmd := c.Command(c.ctx, self)
	cmd.Env = append(os.Environ(), intruderEnv+"="+strings.Join([]string{c.Root, "/run", filepath.Join(c.Dir, "logs")}, ":"))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		c.t.Fatalf("%v: %s", err, stderr.String())
	}
	var result intrusion
	c.must(json.Unmarshal(out, &result))
	c.t.Logf("%s, another user has tried %d files", when, len(result.Tried))
	for _, got := range result.Got {
		if !slices.Contains(permitted, got) {
			c.t.Errorf("%s, any user of the node can %s", when, got)
		}
	}
	for _, pattern := range patterns {
		if !slices.ContainsFunc(result.Tried, func(path string) bool {
			matched, err := filepath.Match(pattern, path)
			c.must(err)
			return matched
		}) {
			c.t.Errorf("%s, nothing is at %s: the test proves nothing", when, pattern)
		}
	}
}

const privateManifest = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: NAME}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Secret
metadata: {name: NAME}
stringData: {key: secret}
---
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  hostUsers: USERS
  terminationGracePeriodSeconds: 0
  volumes:
  - {name: disk, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory}}
  - {name: secret, secret: {secretName: NAME, defaultMode: 0444}}
  - {name: claim, persistentVolumeClaim: {claimName: NAME}}
  - {name: host, hostPath: {path: HOST, type: DirectoryOrCreate}}
  - {name: image, image: {reference: registry.test/cri/users:1, pullPolicy: Never}}
  containers:
  - name: open
    image: registry.test/cri/users:1
    imagePullPolicy: Never
    command: [/bin/sh, -c, 'umask 0; for d in / /disk /memory /claim /host /host/sub; do mkdir -p $d/open; cp /bin/sh $d/open/suid; chmod 6777 $d/open/suid; mkfifo $d/open/fifo; done; sleep 3600']
    volumeMounts:
    - {name: disk, mountPath: /disk}
    - {name: memory, mountPath: /memory}
    - {name: secret, mountPath: /secret}
    - {name: claim, mountPath: /claim}
    - {name: host, mountPath: /host}
    - {name: claim, mountPath: /sub, subPath: sub/path}
    - {name: image, mountPath: /image}
  - name: fixed
    image: registry.test/cri/users:1
    imagePullPolicy: Never
    command: [/bin/sh, -c, 'until test -e /disk/open/fifo; do sleep 0.1; done; cat /disk/open/suid /secret/key /etc/hosts /etc/resolv.conf >/disk/copy && echo able; until rm /disk/open/restart 2>/dev/null; do sleep 0.1; done']
    securityContext: {readOnlyRootFilesystem: true, runAsUser: 1000, runAsGroup: 1000}
    volumeMounts:
    - {name: disk, mountPath: /disk}
    - {name: secret, mountPath: /secret}
`

// TestOtherUsers checks that a user of the node who isn't root can't use a file, directory or
// socket of a pod or of huskd, whatever modes a container gives its files: an executable with a
// setuid bit in a root file system would make any user root (CVE-2021-41091 of moby).
func TestOtherUsers(t *testing.T) {
	t.Parallel()
	hosttest.Root(t)
	n := node.New(t)
	serveRegistry(t, n)
	if err := os.WriteFile(filepath.Join(n.Dir, "huskd.toml"), []byte(shimConfig()), 0o644); err != nil {
		t.Fatal(err)
	}
	logs := filepath.Join(n.Dir, "logs")
	flags := node.Flags("--config", filepath.Join(n.Dir, "huskd.toml"), "--pod-logs-dir", filepath.Join(logs, "pods"))
	c := serveCRI(t, n, flags)
	c.must(os.Chmod(c.Dir, 0o711)) // other users and the root users of user namespaces pass through it
	c.pull(webImage)
	c.pull(usersImage)
	private := filepath.Join(c.Dir, "private")
	c.must(os.Mkdir(private, 0o700))
	declare := func(name, users string) {
		t.Helper()
		text := strings.NewReplacer("NAME", name, "USERS", users, "HOST", filepath.Join(private, name)).Replace(privateManifest)
		path := filepath.Join(c.Dir, name+".yaml")
		c.must(os.WriteFile(path, []byte(text), 0o600))
		c.MustHusk("run", "--wait", path)
		node.Eventually(t, 30*time.Second, func() string {
			if r := c.Husk("logs", name, "-c", "fixed"); r.Stdout != "able\n" {
				return fmt.Sprintf("container fixed of %s says %v", name, r)
			}
			return ""
		})
	}
	declare("plain", "true")
	declare("mapped", "false")
	pod, _ := c.runShimPod()
	c.ready(c.run(pod, "umask 0; cp /bin/sh /suid; chmod 6777 /suid; "+forever))
	native := c.pod(withUserNamespace)
	c.ready(c.run(native, "umask 0; cp /bin/sh /suid; chmod 6777 /suid; "+forever, inOwnPID))
	c.otherUser("with pods of each kind",
		c.Root+"/containers/*/rootfs/open/suid", c.Root+"/containers/*/upper/open/suid", c.Root+"/containers/*/rootfs/suid",
		c.Root+"/pods/*/volumes/disk/open/suid", c.State+"/pods/*/volumes/memory/open/suid", c.Root+"/claims/default/plain/data/open/suid",
		c.Root+"/containers/*/volumes/*/rootfs/open/suid", c.Root+"/images/layers/*/*", c.State+"/husk.sock", c.State+"/containers/*/attach", c.State+"/sandboxes/*/memory/hosts",
		"/run/containerd/s/*", logs+"/pods/*/open/0.log", logs+"/containers/*.log", "/proc/[0-9]*")

	// An upgrade from a version that let others pass, by a huskd that finds pods running.
	c.huskd.Stop()
	for pattern, mode := range map[string]fs.FileMode{
		c.Root: 0o755, c.Root + "/*": 0o755, c.Root + "/containers/*": 0o755, c.State: 0o755, c.State + "/*": 0o711, c.State + "/containers/*": 0o711,
		c.State + "/sandboxes/*": 0o711, logs + "/*": 0o755, logs + "/pods/*": 0o755,
	} {
		dirs, err := filepath.Glob(c.Path(pattern))
		c.must(err)
		for _, dir := range dirs {
			if info, err := os.Stat(dir); err == nil && info.IsDir() {
				c.must(os.Chown(dir, 0, 0))
				c.must(os.Chmod(dir, mode))
			}
		}
	}
	c.huskd = c.Huskd(flags)
	c.connect()
	for _, name := range []string{"plain", "mapped"} {
		c.MustHusk("exec", name, "-c", "open", "--", "touch", "/disk/open/restart")
		node.Eventually(t, 30*time.Second, func() string {
			if p := findPod(t, n, name); p.Containers[1].Restarts == 0 || !p.Ready {
				return fmt.Sprintf("container fixed of %s is not ready again: %+v", name, p)
			}
			return ""
		})
	}
	c.ready(c.run(native, forever, inOwnPID))
	c.otherUser("after an upgrade", c.Root+"/containers/*/rootfs/open/suid", c.Root+"/containers/*/rootfs/suid")
	for _, name := range []string{"plain", "mapped"} {
		c.MustHusk("rm", "-f", name)
		c.MustHusk("volume", "rm", name)
	}
	c.end()
}

// inOwnPID gives a container a PID namespace of its own.
func inOwnPID(k *runtimeapi.ContainerConfig) {
	k.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}}
}
