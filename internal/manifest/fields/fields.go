// Package fields has the tables of the fields of a pod manifest: the fields that Husk honours, and
// those that have no effect on a single node. It is pure.
package fields

import (
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/huskd/husk/internal/manifest/remedy"
)

// How says what Husk does with a field.
type How string

// What Husk does with the fields in the tables. It refuses other fields if they are set.
const (
	Honoured How = "honoured"
	// Ignored fields have no meaning on a single node. They are accepted so that manifests written
	// for a cluster work.
	Ignored How = "ignored"
)

// Field is a field of a pod manifest that may be set.
type Field struct {
	// Path, such as spec.containers[].image. It includes all fields below it.
	Path    string
	How     How
	Meaning string
}

// podFields are the fields of a pod, except those of its containers.
var podFields = []Field{
	{"apiVersion", Honoured, "v1"},
	{"kind", Honoured, "Pod, or a PodList or List whose items are pods; or a ConfigMap, Secret, PersistentVolumeClaim, PersistentVolume or NetworkPolicy"},
	{"metadata.name", Honoured, "name of the pod; also its host name, unless spec.hostname is set"},
	{"metadata.generateName", Honoured, "without a name: the beginning of the name. The rest depends on the manifest, so that the same file means the same pod"},
	{"metadata.namespace", Honoured, "namespace of the pod; default if absent"},
	{"metadata.uid", Honoured, "identity of the pod; if absent, derived from the manifest, the node and the source, so that an edited manifest makes a new pod"},
	{"metadata.labels", Honoured, "passed to the sandbox and to network plugins"},
	{"metadata.annotations", Honoured, "passed to the sandbox and to network plugins"},
	{"spec.restartPolicy", Honoured, "Always (default), OnFailure or Never"},
	{"spec.terminationGracePeriodSeconds", Honoured, "time between SIGTERM and SIGKILL when the pod is stopped; 30 if absent"},
	{"spec.activeDeadlineSeconds", Honoured, "time after which the pod is stopped and counts as failed"},
	{"spec.hostNetwork", Honoured, "uses the node's network namespace"},
	{"spec.hostPID", Honoured, "uses the node's PID namespace: the pod sees the node's processes"},
	{"spec.hostIPC", Honoured, "uses the node's IPC namespace and /dev/shm"},
	{"spec.hostUsers", Honoured, "false gives the pod its own user namespace: its root user has no privileges on the node. Files in volumes keep their owners"},
	{"spec.runtimeClassName", Honoured, "runtime handler of the containers, one of [runtimes.NAME] in the [configuration](config.md#runtime-handlers)"},
	{"spec.shareProcessNamespace", Honoured, "the containers share one PID namespace"},
	{"spec.hostname", Honoured, "host name of the pod"},
	{"spec.subdomain", Honoured, "makes the pod's fully qualified name HOSTNAME.SUBDOMAIN.NAMESPACE.svc.DOMAIN, which is added to /etc/hosts; DOMAIN is the cluster's domain, or cluster.local"},
	{"spec.hostnameOverride", Honoured, "host name of the pod, instead of those that follow from metadata.name, spec.hostname and spec.subdomain; may have several labels, at most 64 characters"},
	{"spec.setHostnameAsFQDN", Honoured, "uses the fully qualified name as host name"},
	{"spec.resources.limits", Honoured, "cpu, memory, hugepages-<size>: limits of the pod as a whole, and of each of its containers that has none of its own"},
	{"spec.resources.requests", Honoured, "cpu, memory, hugepages-<size>: requests of the pod as a whole; if absent, the sum of the containers' requests or, without any, the limits"},
	{"spec.overhead", Honoured, "cpu, memory: needs of the pod beyond its containers; added to its requests and limits"},
	{"spec.hostAliases", Honoured, "additional lines of /etc/hosts"},
	{"spec.dnsPolicy", Honoured, "Default, None, ClusterFirst (default) or ClusterFirstWithHostNet; see docs/names.md"},
	{"spec.dnsConfig", Honoured, "name servers, search domains and resolver options, added to those of dnsPolicy"},
	{"spec.os.name", Honoured, "must be linux"},
	{"spec.securityContext.runAsUser", Honoured, "user ID of containers that set none"},
	{"spec.securityContext.runAsGroup", Honoured, "group ID of containers that set none"},
	{"spec.securityContext.runAsNonRoot", Honoured, "refuses to start a container as user 0"},
	{"spec.securityContext.supplementalGroups", Honoured, "supplementary groups of the containers' processes"},
	{"spec.securityContext.fsGroup", Honoured, "group that owns the files of volumes other than hostPath; also a supplementary group of the containers' processes"},
	{"spec.securityContext.supplementalGroupsPolicy", Honoured, "Merge (default) adds the user's groups in the image's /etc/group, Strict does not"},
	{"spec.securityContext.sysctls", Honoured, "kernel parameters of the pod's own namespaces"},
	{"spec.securityContext.seccompProfile", Honoured, "RuntimeDefault (default, unless seccomp-default is false), Unconfined or Localhost"},
	{"spec.securityContext.appArmorProfile", Honoured, "RuntimeDefault, Unconfined, or Localhost with a loaded profile"},
	{"spec.securityContext.seLinuxOptions", Honoured, "parts of the containers' SELinux label"},
	{"spec.imagePullSecrets", Honoured, "registry credentials: Secrets with a .dockerconfigjson or .dockercfg. All that match an image are tried, those for the longest host and path first"},
	{"spec.volumes[].name", Honoured, "name of the volume, which volumeMounts refer to"},
	{"spec.volumes[].emptyDir.medium", Honoured, "absent for a directory on disk, Memory for a tmpfs, HugePages or HugePages-<size> for huge pages"},
	{"spec.volumes[].emptyDir.sizeLimit", Honoured, "size of a tmpfs; a pod whose volume on disk grows beyond it is evicted"},
	{"spec.volumes[].configMap", Honoured, "a file for each key of a ConfigMap, or for the keys in items; files follow changes of the ConfigMap"},
	{"spec.volumes[].secret", Honoured, "a file in memory for each key of a Secret, or for the keys in items; files follow changes of the Secret"},
	{"spec.volumes[].downwardAPI", Honoured, "files with fields of the pod: metadata.name, .namespace, .uid, .labels, .annotations, and limits and requests of its containers"},
	{"spec.volumes[].projected.defaultMode", Honoured, "mode of the files; 0644 if absent"},
	{"spec.volumes[].projected.sources[].configMap", Honoured, "like the volume; all sources share one directory"},
	{"spec.volumes[].projected.sources[].secret", Honoured, "like the volume; all sources share one directory"},
	{"spec.volumes[].projected.sources[].downwardAPI", Honoured, "like the volume; all sources share one directory"},
	{"spec.volumes[].image.reference", Honoured, "image whose files make up the volume; it is read-only"},
	{"spec.volumes[].image.pullPolicy", Honoured, "like imagePullPolicy"},
	{"spec.volumes[].persistentVolumeClaim", Honoured, "a PersistentVolumeClaim: a directory of this node that stays when the pod is removed, or the directory of a PersistentVolume of hostPath or local that the claim names or matches. Its size is not enforced"},
	{"spec.volumes[].ephemeral", Honoured, "a directory that is removed with the pod; its size is not enforced"},
	{"spec.volumes[].hostPath.path", Honoured, "file or directory on the node"},
	{"spec.volumes[].hostPath.type", Honoured, "what must exist, or is created: DirectoryOrCreate, Directory, FileOrCreate, File, Socket, CharDevice, BlockDevice"},

	{"metadata.creationTimestamp", Ignored, "set by an API server"},
	{"metadata.finalizers", Ignored, "nothing waits for the end of a manifest's pod"},
	{"metadata.generation", Ignored, "set by an API server"},
	{"metadata.managedFields", Ignored, "set by an API server"},
	{"metadata.ownerReferences", Ignored, "set by an API server"},
	{"metadata.resourceVersion", Ignored, "set by an API server"},
	{"metadata.selfLink", Ignored, "set by an API server"},
	{"spec.affinity", Ignored, "the pod runs on this node"},
	{"spec.automountServiceAccountToken", Ignored, "there are no tokens without an API server"},
	{"spec.enableServiceLinks", Honoured, "whether containers have the addresses and ports of the namespace's Services in variables such as WEB_SERVICE_HOST; true if absent"},
	{"spec.nodeName", Ignored, "the pod runs on this node"},
	{"spec.nodeSelector", Ignored, "the pod runs on this node"},
	{"spec.securityContext.fsGroupChangePolicy", Ignored, "files get their group when they are created and are not changed later"},
	{"spec.securityContext.seLinuxChangePolicy", Ignored, "a volume is labelled when a container that mounts it is created"},
	{"spec.securityContext.windowsOptions", Ignored, "the node runs Linux"},
	{"spec.preemptionPolicy", Ignored, "pods are not preempted"},
	{"spec.priority", Ignored, "a cluster schedules, preempts and evicts by it"},
	{"spec.priorityClassName", Ignored, "a cluster schedules, preempts and evicts by it"},
	{"spec.readinessGates", Ignored, "there is nobody to open them: the pod is ready when its containers are"},
	{"spec.schedulerName", Ignored, "the pod runs on this node"},
	{"spec.serviceAccount", Ignored, "there are no service accounts without an API server"},
	{"spec.serviceAccountName", Ignored, "there are no service accounts without an API server"},
	{"spec.tolerations", Ignored, "this node has no taints"},
	{"spec.topologySpreadConstraints", Ignored, "there is only one node"},
	{"spec.volumes[].projected.sources[].serviceAccountToken", Ignored, "there are no tokens without an API server: the file is missing. Volumes named kube-api-access-*, which an API server adds, are left out"},
	{"status", Ignored, "set by the node that runs the pod"},
}

// containerFields are the fields of the items of spec.containers and spec.initContainers.
var containerFields = []Field{
	{"name", Honoured, "name of the container"},
	{"image", Honoured, "image of the container; a name without a registry is one of `short-names` in the [configuration](config.md)"},
	{"imagePullPolicy", Honoured, "Always, IfNotPresent or Never. If absent, the tag latest is pulled each time, unless the image came from an archive (`husk image load`), and others only if the node doesn't have them"},
	{"command", Honoured, "program and its first arguments, instead of the image's entrypoint; $(VAR) is expanded"},
	{"args", Honoured, "arguments, instead of the image's; $(VAR) is expanded"},
	{"workingDir", Honoured, "working directory, instead of the image's"},
	{"env[].name", Honoured, "name of the variable"},
	{"env[].value", Honoured, "value of the variable; $(VAR) is expanded, for variables defined earlier"},
	{"env[].valueFrom.fieldRef", Honoured, "metadata.name, .namespace, .uid, .labels['key'], .annotations['key'], spec.nodeName, .serviceAccountName (empty without an API server), status.podIP, .podIPs, .hostIP, .hostIPs"},
	{"env[].valueFrom.configMapKeyRef", Honoured, "a key of a ConfigMap; read when the container starts"},
	{"env[].valueFrom.secretKeyRef", Honoured, "a key of a Secret; read when the container starts"},
	{"env[].valueFrom.fileKeyRef", Honoured, "a variable in a file of an emptyDir, which an init container has written as lines NAME='value'; read when the container starts. Unless optional, the file and the variable must exist"},
	{"envFrom", Honoured, "a variable for each key of a ConfigMap or Secret; read when the container starts. Variables in env override them"},
	{"env[].valueFrom.resourceFieldRef", Honoured, "a limit or request of a container: cpu, memory, ephemeral-storage or hugepages-<size>, in units of divisor"},
	{"ports[].name", Honoured, "name of the port, for use in probes and hooks"},
	{"ports[].containerPort", Honoured, "port that the container listens on"},
	{"ports[].hostPort", Honoured, "port of the node that is forwarded to containerPort"},
	{"ports[].hostIP", Honoured, "address of the node for hostPort; all addresses if absent"},
	{"ports[].protocol", Honoured, "TCP (default), UDP or SCTP"},
	{"resources.limits", Honoured, "cpu, memory, hugepages-<size>: limits of the container; ephemeral-storage: a pod that uses more disk space is evicted; extended resources such as example.com/gpu: devices of device plugins, on a node of a cluster; others are only counted"},
	{"resources.requests", Honoured, "cpu: share of processor time; memory: the more, the later the container is killed when memory runs out; hugepages-<size> and extended resources: must equal the limit; ephemeral-storage has no effect"},
	{"volumeMounts[].name", Honoured, "name of the volume"},
	{"volumeMounts[].mountPath", Honoured, "path in the container"},
	{"volumeMounts[].subPath", Honoured, "path inside the volume to mount instead of its root; created as a directory if it does not exist"},
	{"volumeMounts[].subPathExpr", Honoured, "like subPath, with $(VAR) expanded"},
	{"volumeMounts[].readOnly", Honoured, "mounts the volume read-only"},
	{"volumeMounts[].recursiveReadOnly", Honoured, "whether mounts below are read-only too: Disabled (default), IfPossible or Enabled"},
	{"volumeMounts[].mountPropagation", Honoured, "None (default), HostToContainer or, for privileged containers, Bidirectional"},
	{"volumeMounts[].bindMountOptions", Honoured, "noexec, nodev, nosuid"},
	{"securityContext.runAsUser", Honoured, "user ID"},
	{"securityContext.runAsGroup", Honoured, "group ID"},
	{"securityContext.runAsNonRoot", Honoured, "refuses to start the container as user 0"},
	{"securityContext.privileged", Honoured, "grants all capabilities and devices, without seccomp, AppArmor or SELinux confinement"},
	{"securityContext.allowPrivilegeEscalation", Honoured, "false keeps setuid programs from gaining privileges"},
	{"securityContext.readOnlyRootFilesystem", Honoured, "mounts the root file system read-only"},
	{"securityContext.capabilities.add", Honoured, "capabilities in addition to the default ones"},
	{"securityContext.capabilities.drop", Honoured, "capabilities to remove from the default ones"},
	{"securityContext.procMount", Honoured, "Default, or Unmasked for an unrestricted /proc"},
	{"securityContext.seccompProfile", Honoured, "like the pod's, which it overrides"},
	{"securityContext.appArmorProfile", Honoured, "like the pod's, which it overrides"},
	{"securityContext.seLinuxOptions", Honoured, "like the pod's, which it overrides"},
	{"securityContext.windowsOptions", Ignored, "the node runs Linux"},
	{"livenessProbe", Honoured, "exec, httpGet, tcpSocket or grpc; if it fails, the container is stopped, and restarted according to restartPolicy"},
	{"readinessProbe", Honoured, "exec, httpGet, tcpSocket or grpc; tells whether the container is ready"},
	{"startupProbe", Honoured, "exec, httpGet, tcpSocket or grpc; the other probes, and the containers after a sidecar, wait until it succeeds. If it fails, the container is stopped as with livenessProbe"},
	{"lifecycle.postStart", Honoured, "exec, httpGet, tcpSocket or sleep; runs right after the start. If it fails, the container is stopped"},
	{"lifecycle.preStop", Honoured, "exec, httpGet, tcpSocket or sleep; runs before the stop signal is sent. Its duration counts towards the grace period"},
	{"lifecycle.stopSignal", Honoured, "signal that asks the container to stop, instead of the image's or SIGTERM"},
	{"terminationMessagePath", Honoured, "file from which the container's termination message is read, at most 4096 bytes; /dev/termination-log if absent"},
	{"terminationMessagePolicy", Honoured, "File (default), or FallbackToLogsOnError to use the end of the log if the container fails and the file is empty"},
	{"restartPolicy", Honoured, "when the container restarts: Always, OnFailure or Never; spec.restartPolicy if absent. On an init container, Always makes it a sidecar, which starts before the containers, runs beside them and stops after them"},
	{"restartPolicyRules", Honoured, "actions by exit code, the first that matches instead of restartPolicy: Restart restarts the container, RestartAllContainers kills all containers and runs them again, from the first init container on"},
	{"stdin", Honoured, "keeps standard input open for attach"},
	{"stdinOnce", Honoured, "closes standard input when the first client disconnects"},
	{"tty", Honoured, "allocates a terminal"},
	{"resizePolicy", Honoured, "how changed resources take effect: NotRequired (default) applies them to the running container, RestartContainer restarts it"},
}

// All returns all fields that may be set, sorted by path.
func All() []Field {
	out := slices.Clone(podFields)
	for _, containers := range []string{"spec.containers[].", "spec.initContainers[]."} {
		for _, f := range containerFields {
			f.Path = containers + f.Path
			out = append(out, f)
		}
	}
	slices.SortFunc(out, func(a, b Field) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// Coverage is how much of a pattern the table lists.
type Coverage int

// The coverages of a pattern.
const (
	Unlisted Coverage = iota // refused if set
	Partial                  // some of the fields below are listed
	Listed                   // listed with all fields below
)

// coverage is the Coverage of each pattern that isn't Unlisted.
var coverage = coverages()

func coverages() map[string]Coverage {
	known := map[string]Coverage{}
	for _, f := range All() {
		known[f.Path] = Listed
		for p := Parent(f.Path); p != ""; p = Parent(p) {
			known[p] = Partial
		}
	}
	return known
}

// Lookup returns the coverage of a pattern and, if it is Unlisted, the message for a user who sets
// it in a pod of that source.
func Lookup(pattern string, from remedy.Source) (Coverage, string) {
	s := coverage[pattern]
	if s != Unlisted {
		return s, ""
	}
	return Unlisted, from.Field(strings.Replace(pattern, "spec.initContainers[]", "spec.containers[]", 1))
}

// maxFieldName bounds the names for which Nearest looks for similar ones.
const maxFieldName = 64

// Suggest returns the rest of a message about an unknown field. It names a sibling with a similar
// name, or a field of the same name elsewhere.
func Suggest(name, parentPattern string, siblings map[string][]int) string {
	if len(name) > maxFieldName {
		return ": remove it"
	}
	if best := Nearest(name, maps.Keys(siblings)); best != "" {
		return "; did you mean " + best + "?"
	}
	for _, f := range All() {
		if strings.HasSuffix(f.Path, "."+name) && Parent(f.Path) != parentPattern {
			return "; did you mean " + f.Path + "?"
		}
	}
	if p := "spec." + name; coverage[p] == Partial {
		return "; did you mean " + p + "?"
	}
	return ": remove it"
}

// Nearest returns the one of the known names that is most similar to name, or "" if none is.
func Nearest(name string, known iter.Seq[string]) string {
	if len(name) > maxFieldName {
		return ""
	}
	best, distance := "", max(len(name)/3, 1)
	for s := range known {
		d := editDistance(strings.ToLower(name), strings.ToLower(s))
		if d < distance || d == distance && (best == "" || s < best) {
			best, distance = s, d
		}
	}
	return best
}

// editDistance returns the least number of letters to insert, delete, replace or swap with a
// neighbour to turn a into b.
func editDistance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			replace := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, replace)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

// Parent returns the path that contains path: a.b for a.b[0], a for a.b, "" for a.
func Parent(path string) string {
	if i := strings.LastIndexAny(path, ".["); i >= 0 {
		return path[:i]
	}
	return ""
}
