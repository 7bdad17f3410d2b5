// Package podflags turns the flags with which docker and podman run a container into the manifest
// of a pod. It is pure: what it needs of the host is in Host.
package podflags

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Flags are the values of the flags that describe a pod.
type Flags struct {
	Stdin, TTY bool

	name, user, workdir, entrypoint, restart, memory, network, hostname, pull, cpus string
	env, ports, volumes, labels                                                     []string

	set *pflag.FlagSet
}

// names are those of the flags that Add adds.
var names = []string{"name", "env", "publish", "volume", "interactive", "tty", "user", "workdir", "entrypoint", "restart", "cpus", "memory", "network", "hostname", "label", "pull"}

// Add adds the flags to set.
func (f *Flags) Add(set *pflag.FlagSet) {
	f.set = set
	set.StringVar(&f.name, "name", "", "of an image: `NAME` of the pod, [NAMESPACE/]NAME (default: the image's)")
	set.StringArrayVarP(&f.env, "env", "e", nil, "of an image: `KEY=VALUE` in the environment, or KEY for husk's own value")
	set.StringArrayVarP(&f.ports, "publish", "p", nil, "of an image: `[IP:]HOST:CONTAINER[/PROTOCOL]`, a port of the node")
	set.StringArrayVarP(&f.volumes, "volume", "v", nil, "of an image: `SOURCE:TARGET[:ro]`, a directory of the node or the name of a claim")
	set.BoolVarP(&f.Stdin, "interactive", "i", false, "of an image: pass standard input to the program")
	set.BoolVarP(&f.TTY, "tty", "t", false, "of an image: run the program on a terminal")
	set.StringVarP(&f.user, "user", "u", "", "of an image: `UID[:GID]` of the program")
	set.StringVarP(&f.workdir, "workdir", "w", "", "of an image: working `DIR` of the program")
	set.StringVar(&f.entrypoint, "entrypoint", "", "of an image: `PROGRAM` in place of the image's own")
	set.StringVar(&f.restart, "restart", "no", "of an image: `WHEN` to restart the program: no, on-failure or always")
	set.StringVar(&f.cpus, "cpus", "", "of an image: `NUMBER` of CPUs that it may use at most, such as 0.5")
	set.StringVarP(&f.memory, "memory", "m", "", "of an image: `SIZE` of the memory that it may use at most, such as 512m")
	set.StringVar(&f.network, "network", "", "of an image: `NETWORK`: host for the node's (default: the pod network)")
	set.StringVar(&f.hostname, "hostname", "", "of an image: `NAME` of the host that the program sees")
	set.StringArrayVarP(&f.labels, "label", "l", nil, "of an image: `KEY=VALUE`, a label of the pod")
	set.StringVar(&f.pull, "pull", "", "of an image: `WHEN` to pull it: always, missing or never")
}

// Given returns the names of the flags on the command line; they mean nothing for a manifest.
func (f *Flags) Given() []string {
	var given []string
	for _, name := range names {
		if f.set.Changed(name) {
			given = append(given, "--"+name)
		}
	}
	return given
}

// Host is what the flags refer to.
type Host struct {
	Dir string // working directory, for relative paths
	Env func(string) (string, bool)
	// Taken reports whether there is a pod of that name already; nil if it isn't known.
	Taken func(namespace, name string) bool
}

// Objects returns the pod that runs image with the flags, and the claims that it names.
func (f *Flags) Objects(image string, command []string, host Host) (*corev1.Pod, []*corev1.PersistentVolumeClaim, error) {
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
	pod.Name = f.name
	if namespace, name, found := strings.Cut(f.name, "/"); found {
		pod.Namespace, pod.Name = namespace, name
	}
	taken := host.Taken
	if taken == nil {
		taken = func(string, string) bool { return false }
	}
	switch {
	case pod.Name == "":
		base := nameOf(image)
		pod.Name = base
		for n := 2; taken(pod.Namespace, pod.Name); n++ {
			pod.Name = fmt.Sprintf("%s-%d", base, n)
		}
	case taken(pod.Namespace, pod.Name):
		return nil, nil, fmt.Errorf("there is a pod %s already: choose another --name, add --replace, or remove it by husk rm -f %s", f.name, f.name)
	}
	pod.Spec.Containers = []corev1.Container{{Name: pod.Name, Image: image, Args: command, Stdin: f.Stdin, StdinOnce: f.Stdin, TTY: f.TTY, WorkingDir: f.workdir}}
	pod.Spec.Hostname = f.hostname
	c := &pod.Spec.Containers[0]
	if f.entrypoint != "" {
		c.Command = strings.Fields(f.entrypoint)
	}
	for _, step := range []func(*corev1.Pod, *corev1.Container) error{
		f.setEnv(host), f.setPorts, f.setLabels, f.setUser, f.setLimits, f.setRestart, f.setNetwork, f.setPull,
	} {
		if err := step(pod, c); err != nil {
			return nil, nil, err
		}
	}
	claims, err := f.setVolumes(pod, c, host.Dir)
	return pod, claims, err
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// nameOf derives the name of a pod from that of an image.
func nameOf(image string) string {
	image, _, _ = strings.Cut(image, "@")
	image = image[strings.LastIndex(image, "/")+1:]
	image, _, _ = strings.Cut(image, ":")
	name := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(image), "-"), "-")
	if name == "" {
		return "pod"
	}
	// A pod's name has at most 63 characters, of which some are for a number.
	return name[:min(len(name), 58)]
}

func (f *Flags) setEnv(host Host) func(*corev1.Pod, *corev1.Container) error {
	return func(_ *corev1.Pod, c *corev1.Container) error {
		for _, e := range f.env {
			key, value, given := strings.Cut(e, "=")
			if !given {
				var set bool
				if value, set = host.Env(key); !set {
					continue // as docker and podman do
				}
			}
			// A $ begins a reference in a manifest, but not on the command line.
			c.Env = append(c.Env, corev1.EnvVar{Name: key, Value: strings.ReplaceAll(value, "$(", "$$(")})
		}
		return nil
	}
}

func (f *Flags) setPorts(_ *corev1.Pod, c *corev1.Container) error {
	for _, p := range f.ports {
		rest, protocol, _ := strings.Cut(p, "/")
		var ip string
		if i := strings.LastIndex(rest, ":"); i >= 0 {
			if j := strings.LastIndex(rest[:i], ":"); j >= 0 {
				ip, rest = strings.Trim(rest[:j], "[]"), rest[j+1:]
			}
		}
		host, container, found := strings.Cut(rest, ":")
		from, err := strconv.ParseUint(host, 10, 16)
		to, err2 := strconv.ParseUint(container, 10, 16)
		if !found || err != nil || err2 != nil {
			return fmt.Errorf("--publish %s: must be [IP:]HOST:CONTAINER[/PROTOCOL] with one port each, such as 8080:80", p)
		}
		port := corev1.ContainerPort{HostIP: ip, HostPort: int32(from), ContainerPort: int32(to)}
		if protocol != "" {
			port.Protocol = corev1.Protocol(strings.ToUpper(protocol))
		}
		c.Ports = append(c.Ports, port)
	}
	return nil
}

func (f *Flags) setLabels(pod *corev1.Pod, _ *corev1.Container) error {
	for _, l := range f.labels {
		key, value, _ := strings.Cut(l, "=")
		if pod.Labels == nil {
			pod.Labels = map[string]string{}
		}
		pod.Labels[key] = value
	}
	return nil
}

func (f *Flags) setUser(_ *corev1.Pod, c *corev1.Container) error {
	if f.user == "" {
		return nil
	}
	user, group, both := strings.Cut(f.user, ":")
	uid, err := strconv.ParseInt(user, 10, 64)
	var gid int64
	if both && err == nil {
		gid, err = strconv.ParseInt(group, 10, 64)
	}
	if err != nil {
		return fmt.Errorf("--user %s: must be UID or UID:GID, because a manifest has no names of users", f.user)
	}
	c.SecurityContext = &corev1.SecurityContext{RunAsUser: &uid}
	if both {
		c.SecurityContext.RunAsGroup = &gid
	}
	return nil
}

// dockerSize matches a size as docker and podman write it, whose units are powers of 1024.
var dockerSize = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)([bkmgBKMG])b?$`)

func (f *Flags) setLimits(_ *corev1.Pod, c *corev1.Container) error {
	limits := corev1.ResourceList{}
	if f.cpus != "" {
		q, err := resource.ParseQuantity(f.cpus)
		if err != nil || q.Sign() <= 0 {
			return fmt.Errorf("--cpus %s: must be a number of CPUs, such as 0.5", f.cpus)
		}
		limits[corev1.ResourceCPU] = q
	}
	if f.memory != "" {
		text := f.memory
		if m := dockerSize.FindStringSubmatch(text); m != nil {
			text = m[1] + map[string]string{"b": "", "k": "Ki", "m": "Mi", "g": "Gi"}[strings.ToLower(m[2])]
		}
		q, err := resource.ParseQuantity(text)
		if err != nil || q.Sign() <= 0 {
			return fmt.Errorf("--memory %s: must be a size, such as 512m", f.memory)
		}
		limits[corev1.ResourceMemory] = q
	}
	if len(limits) > 0 {
		c.Resources.Limits = limits
	}
	return nil
}

func (f *Flags) setRestart(pod *corev1.Pod, _ *corev1.Container) error {
	when, _, _ := strings.Cut(f.restart, ":")
	switch when {
	case "no", "never":
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	case "on-failure":
		pod.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	case "always", "unless-stopped":
		pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	default:
		return fmt.Errorf("--restart %s: must be no, on-failure or always", f.restart)
	}
	return nil
}

func (f *Flags) setNetwork(pod *corev1.Pod, _ *corev1.Container) error {
	switch f.network {
	case "", "bridge", "default":
	case "host":
		pod.Spec.HostNetwork = true
	default:
		return fmt.Errorf("--network %s: must be host, or left out for the pod network", f.network)
	}
	return nil
}

func (f *Flags) setPull(_ *corev1.Pod, c *corev1.Container) error {
	switch f.pull {
	case "":
	case "always", "newer":
		c.ImagePullPolicy = corev1.PullAlways
	case "missing":
		c.ImagePullPolicy = corev1.PullIfNotPresent
	case "never":
		c.ImagePullPolicy = corev1.PullNever
	default:
		return fmt.Errorf("--pull %s: must be always, missing or never", f.pull)
	}
	return nil
}

// setVolumes returns the claims that volumes name.
func (f *Flags) setVolumes(pod *corev1.Pod, c *corev1.Container, dir string) (claims []*corev1.PersistentVolumeClaim, err error) {
	for i, v := range f.volumes {
		parts := strings.Split(v, ":")
		mount := corev1.VolumeMount{Name: fmt.Sprintf("volume-%d", i+1)}
		volume := corev1.Volume{Name: mount.Name}
		if len(parts) == 3 {
			for _, option := range strings.Split(parts[2], ",") {
				switch option {
				case "ro":
					mount.ReadOnly = true
				case "rw", "z", "Z":
				default:
					return nil, fmt.Errorf("--volume %s: the only options are ro and rw", v)
				}
			}
			parts = parts[:2]
		}
		switch {
		case len(parts) == 1:
			mount.MountPath, volume.EmptyDir = parts[0], &corev1.EmptyDirVolumeSource{}
		case len(parts) != 2 || parts[0] == "":
			return nil, fmt.Errorf("--volume %s: must be SOURCE:TARGET or SOURCE:TARGET:ro", v)
		case strings.HasPrefix(parts[0], "/"), strings.HasPrefix(parts[0], "."):
			source := parts[0]
			if !filepath.IsAbs(source) {
				source = filepath.Join(dir, source)
			}
			mount.MountPath, volume.HostPath = parts[1], &corev1.HostPathVolumeSource{Path: filepath.Clean(source)}
		default:
			mount.MountPath = parts[1]
			volume.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: parts[0]}
			claims = append(claims, claim(parts[0], pod.Namespace))
		}
		if !strings.HasPrefix(mount.MountPath, "/") {
			return nil, fmt.Errorf("--volume %s: the directory in the container must be an absolute path", v)
		}
		c.VolumeMounts = append(c.VolumeMounts, mount)
		pod.Spec.Volumes = append(pod.Spec.Volumes, volume)
	}
	return claims, nil
}

// claim returns a claim for a directory of the node. A claim needs a size, which Husk doesn't
// limit.
func claim(name, namespace string) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"}}
	c.Name, c.Namespace = name, namespace
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	return c
}
