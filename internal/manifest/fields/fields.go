// Package fields has the table of the fields of a pod manifest: which are
// honoured, which make no difference on one node, and what is said of the
// others. It is pure.
package fields

import (
	"slices"
	"strings"
)

// How says what Husk does with a field.
type How string

// What Husk does with a field that is in the tables. One that is not is
// refused if it is set.
const (
	Honoured How = "honoured"
	// Ignored fields are accepted for the sake of manifests written for a
	// cluster: on one node they mean nothing.
	Ignored How = "ignored"
)

// Field is a field of a pod manifest that may be set.
type Field struct {
	// Path, such as spec.containers[].image. What is below it is as it is.
	Path    string
	How     How
	Meaning string
}

// podFields are the fields of a pod but for its containers'.
var podFields = []Field{
	{"apiVersion", Honoured, "v1"},
	{"kind", Honoured, "Pod, or PodList and List with pods as items; ConfigMap and Secret beside them"},
	{"metadata.name", Honoured, "name of the pod; its host name too, unless spec.hostname is set"},
	{"metadata.namespace", Honoured, "tells pods of one name apart; default if absent"},
	{"metadata.uid", Honoured, "identity of the pod; made from the manifest, the node and the source if absent, so that an edit makes a new pod"},
	{"metadata.labels", Honoured, "kept, and passed to the sandbox and to network plugins"},
	{"metadata.annotations", Honoured, "kept, and passed to the sandbox and to network plugins"},
	{"spec.restartPolicy", Honoured, "Always (if absent), OnFailure or Never"},
	{"spec.terminationGracePeriodSeconds", Honoured, "time that processes have between SIGTERM and SIGKILL; 30 if absent"},
	{"spec.activeDeadlineSeconds", Honoured, "time after which the pod is stopped and has failed"},
	{"spec.hostNetwork", Honoured, "the node's network instead of one of its own"},
	{"spec.hostPID", Honoured, "the node's processes are visible"},
	{"spec.hostIPC", Honoured, "the node's IPC objects and /dev/shm"},
	{"spec.hostUsers", Honoured, "false gives the pod users of its own: root in it is nobody on the node. Files of volumes keep their owners"},
	{"spec.runtimeClassName", Honoured, "runtime handler to run the containers with, one of [runtimes.NAME] in the [configuration](config.md#runtime-handlers)"},
	{"spec.shareProcessNamespace", Honoured, "the containers see each other's processes"},
	{"spec.hostname", Honoured, "host name of the pod"},
	{"spec.subdomain", Honoured, "makes the pod's whole name HOSTNAME.SUBDOMAIN.NAMESPACE.svc.DOMAIN, which /etc/hosts has; DOMAIN is the cluster's, or cluster.local"},
	{"spec.setHostnameAsFQDN", Honoured, "host name is that whole name"},
	{"spec.resources.limits", Honoured, "cpu, memory: the most that the pod's containers get together"},
	{"spec.resources.requests", Honoured, "cpu, memory: as the containers', of the pod as a whole"},
	{"spec.overhead", Honoured, "cpu, memory: what the pod needs beside its containers; added to its share and limits"},
	{"spec.hostAliases", Honoured, "further lines of /etc/hosts"},
	{"spec.dnsPolicy", Honoured, "Default, None, or ClusterFirst (if absent) and ClusterFirstWithHostNet, which without a cluster are as Default"},
	{"spec.dnsConfig", Honoured, "name servers, search domains and options, added to those of the policy"},
	{"spec.os.name", Honoured, "only linux"},
	{"spec.securityContext.runAsUser", Honoured, "user ID of the containers that name none"},
	{"spec.securityContext.runAsGroup", Honoured, "group ID of the containers that name none"},
	{"spec.securityContext.runAsNonRoot", Honoured, "refuses to run a container as user 0"},
	{"spec.securityContext.supplementalGroups", Honoured, "further groups of the containers' processes"},
	{"spec.securityContext.fsGroup", Honoured, "group of the volumes' files, hostPath's aside, and a further group of the containers' processes"},
	{"spec.securityContext.supplementalGroupsPolicy", Honoured, "Merge (if absent) adds the groups that the image's /etc/group has the user in, Strict doesn't"},
	{"spec.securityContext.sysctls", Honoured, "kernel parameters of the pod's own namespaces"},
	{"spec.securityContext.seccompProfile", Honoured, "RuntimeDefault (if absent), Unconfined or Localhost"},
	{"spec.securityContext.appArmorProfile", Honoured, "RuntimeDefault, Unconfined or Localhost with a profile that is loaded"},
	{"spec.securityContext.seLinuxOptions", Honoured, "parts of the containers' SELinux labels"},
	{"spec.imagePullSecrets", Honoured, "logins at registries: Secrets beside the pod with a .dockerconfigjson or .dockercfg"},
	{"spec.volumes[].name", Honoured, "what mounts call the volume"},
	{"spec.volumes[].emptyDir.medium", Honoured, "empty for the disk, Memory for a tmpfs"},
	{"spec.volumes[].emptyDir.sizeLimit", Honoured, "size of a tmpfs; a pod whose volume on disk takes more is evicted"},
	{"spec.volumes[].configMap", Honoured, "files of the keys of a ConfigMap beside the pod, or of those that items names; they change with it"},
	{"spec.volumes[].secret", Honoured, "files of the keys of a Secret beside the pod, in memory; as configMap"},
	{"spec.volumes[].downwardAPI", Honoured, "files of fields of the pod: metadata.name, .namespace, .uid, .labels, .annotations, and of its containers' resources"},
	{"spec.volumes[].projected.defaultMode", Honoured, "mode of the files; 0644 if absent"},
	{"spec.volumes[].projected.sources[].configMap", Honoured, "as the volume, together with others in one directory"},
	{"spec.volumes[].projected.sources[].secret", Honoured, "as the volume, together with others in one directory"},
	{"spec.volumes[].projected.sources[].downwardAPI", Honoured, "as the volume, together with others in one directory"},
	{"spec.volumes[].image.reference", Honoured, "image whose files are the volume; nobody can write to them"},
	{"spec.volumes[].image.pullPolicy", Honoured, "as imagePullPolicy"},
	{"spec.volumes[].hostPath.path", Honoured, "file or directory of the node"},
	{"spec.volumes[].hostPath.type", Honoured, "what must be there or is made: DirectoryOrCreate, Directory, FileOrCreate, File, Socket, CharDevice, BlockDevice"},

	{"metadata.creationTimestamp", Ignored, "set by an API server"},
	{"metadata.generation", Ignored, "set by an API server"},
	{"metadata.managedFields", Ignored, "set by an API server"},
	{"metadata.ownerReferences", Ignored, "set by an API server"},
	{"metadata.resourceVersion", Ignored, "set by an API server"},
	{"metadata.selfLink", Ignored, "set by an API server"},
	{"spec.enableServiceLinks", Ignored, "there are no services to link to"},
	{"spec.nodeName", Ignored, "the pod runs on this node"},
	{"spec.nodeSelector", Ignored, "the pod runs on this node"},
	{"spec.securityContext.fsGroupChangePolicy", Ignored, "files get their group when they are made, and nothing is gone through later"},
	{"spec.preemptionPolicy", Ignored, "no pod makes way for another"},
	{"spec.priority", Ignored, "no pod makes way for another"},
	{"spec.priorityClassName", Ignored, "no pod makes way for another"},
	{"spec.schedulerName", Ignored, "the pod runs on this node"},
	{"spec.tolerations", Ignored, "this node has no taints"},
	{"spec.topologySpreadConstraints", Ignored, "there is one node"},
	{"status", Ignored, "set by whoever runs the pod"},
}

// containerFields are those of each of spec.containers and spec.initContainers.
var containerFields = []Field{
	{"name", Honoured, "name of the container"},
	{"image", Honoured, "image to run"},
	{"imagePullPolicy", Honoured, "Always, IfNotPresent or Never; if absent, Always for the tag latest and IfNotPresent for others"},
	{"command", Honoured, "program and first arguments, instead of the image's entrypoint; $(VAR) is replaced"},
	{"args", Honoured, "arguments, instead of the image's; $(VAR) is replaced"},
	{"workingDir", Honoured, "working directory, instead of the image's"},
	{"env[].name", Honoured, "name of the variable"},
	{"env[].value", Honoured, "its value; $(VAR) is replaced by variables that come before it"},
	{"env[].valueFrom.fieldRef", Honoured, "metadata.name, .namespace, .uid, .labels['key'], .annotations['key'], spec.nodeName, status.podIP, .podIPs, .hostIP, .hostIPs"},
	{"env[].valueFrom.configMapKeyRef", Honoured, "a key of a ConfigMap beside the pod; read at the container's start"},
	{"env[].valueFrom.secretKeyRef", Honoured, "a key of a Secret beside the pod; read at the container's start"},
	{"envFrom", Honoured, "a variable for each key of a ConfigMap or Secret beside the pod, unless env has it; read at the container's start"},
	{"env[].valueFrom.resourceFieldRef", Honoured, "a limit or request of a container, in units of divisor"},
	{"ports[].name", Honoured, "name of the port, which probes and hooks may use"},
	{"ports[].containerPort", Honoured, "port that the container listens on"},
	{"ports[].hostPort", Honoured, "port of the node that leads to it"},
	{"ports[].hostIP", Honoured, "address of the node that hostPort is on; all of them if absent"},
	{"ports[].protocol", Honoured, "TCP (if absent), UDP or SCTP"},
	{"resources.limits", Honoured, "cpu, memory, hugepages-<size>: the most that the container gets; ephemeral-storage: a pod that takes more of the disk is evicted"},
	{"resources.requests", Honoured, "cpu, memory, hugepages-<size>: share of the processor, and how late it is killed when memory runs out; ephemeral-storage has no effect"},
	{"volumeMounts[].name", Honoured, "volume to mount"},
	{"volumeMounts[].mountPath", Honoured, "where the container has it"},
	{"volumeMounts[].subPath", Honoured, "what is mounted of the volume, instead of all; a directory is made of it if nothing is there"},
	{"volumeMounts[].subPathExpr", Honoured, "as subPath; $(VAR) is replaced"},
	{"volumeMounts[].readOnly", Honoured, "can't be written"},
	{"volumeMounts[].recursiveReadOnly", Honoured, "what is mounted below it can't be written either: Disabled (if absent), IfPossible, Enabled"},
	{"volumeMounts[].mountPropagation", Honoured, "None (if absent), HostToContainer or, privileged only, Bidirectional"},
	{"volumeMounts[].bindMountOptions", Honoured, "noexec, nodev, nosuid"},
	{"securityContext.runAsUser", Honoured, "user ID"},
	{"securityContext.runAsGroup", Honoured, "group ID"},
	{"securityContext.runAsNonRoot", Honoured, "refuses to run as user 0"},
	{"securityContext.privileged", Honoured, "all capabilities and devices, and no confinement"},
	{"securityContext.allowPrivilegeEscalation", Honoured, "false keeps setuid programs from gaining privileges"},
	{"securityContext.readOnlyRootFilesystem", Honoured, "the image's files can't be written"},
	{"securityContext.capabilities.add", Honoured, "capabilities beyond the default ones"},
	{"securityContext.capabilities.drop", Honoured, "default capabilities to be without"},
	{"securityContext.procMount", Honoured, "Default, or Unmasked for all of /proc"},
	{"securityContext.seccompProfile", Honoured, "as the pod's"},
	{"securityContext.appArmorProfile", Honoured, "as the pod's"},
	{"securityContext.seLinuxOptions", Honoured, "as the pod's"},
	{"livenessProbe", Honoured, "exec, httpGet, tcpSocket or grpc that has the container stopped, and started again by restartPolicy, when it fails"},
	{"readinessProbe", Honoured, "exec, httpGet, tcpSocket or grpc that says whether the container is ready"},
	{"startupProbe", Honoured, "exec, httpGet, tcpSocket or grpc that holds back the other two, and what comes after a sidecar, until it succeeds; when it fails, as livenessProbe"},
	{"lifecycle.postStart", Honoured, "exec, httpGet, tcpSocket or sleep right after the start; when it fails, the container is stopped"},
	{"lifecycle.preStop", Honoured, "exec, httpGet, tcpSocket or sleep before the stop signal; its time is part of the grace"},
	{"lifecycle.stopSignal", Honoured, "signal that asks the container to end, instead of the image's or SIGTERM"},
	{"terminationMessagePath", Honoured, "file that is the message of the container's end, at most 4096 bytes of it; /dev/termination-log if absent"},
	{"terminationMessagePolicy", Honoured, "File (if absent), or FallbackToLogsOnError for the end of the log if the container fails and the file is empty"},
	{"stdin", Honoured, "standard input stays open for attach"},
	{"stdinOnce", Honoured, "it is closed when the first client leaves"},
	{"tty", Honoured, "a terminal"},
	{"resizePolicy", Honoured, "NotRequired (if absent) has the resources of a manifest that was changed given to what runs, RestartContainer has the container started again with them"},
}

// sidecarField is the one that only init containers have.
var sidecarField = Field{"spec.initContainers[].restartPolicy", Honoured,
	"Always makes a sidecar: it starts before the containers, runs beside them and stops after them"}

// Remedies are words for fields that are refused, where "not supported yet:
// remove it" doesn't say enough. They hold for what is below the path too.
var Remedies = map[string]string{
	"metadata.deletionTimestamp":                             "set by an API server: remove it, or the manifest if the pod is not to run",
	"metadata.generateName":                                  "a pod of a manifest needs a name of its own: set metadata.name",
	"spec.serviceAccountName":                                "there is no API server whose account it could be: remove it",
	"spec.serviceAccount":                                    "there is no API server whose account it could be: remove it",
	"spec.automountServiceAccountToken":                      "there is no API server to give a token: remove it",
	"spec.ephemeralContainers":                               "an API server adds these to a running pod: use husk exec",
	"spec.containers[].restartPolicy":                        "only an init container has one of its own: use spec.restartPolicy",
	"spec.volumes[].projected.sources[].serviceAccountToken": "there is no API server to give a token: remove it",
	"spec.volumes[].persistentVolumeClaim":                   "there are no claims: mount a directory with hostPath",
	"spec.securityContext.windowsOptions":                    "only Linux pods run here: remove it",
}

// NotYet is said of all others.
const NotSupported = "not supported yet: remove it"

// All returns all fields that may be set, sorted by path.
func All() []Field {
	out := slices.Clone(podFields)
	for _, containers := range []string{"spec.containers[].", "spec.initContainers[]."} {
		for _, f := range containerFields {
			f.Path = containers + f.Path
			out = append(out, f)
		}
	}
	out = append(out, sidecarField)
	slices.SortFunc(out, func(a, b Field) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// Standing says what the table knows of a pattern.
type Coverage int

// The standings of a pattern.
const (
	Unlisted Coverage = iota // refused if set
	Partial                  // some fields below it are listed
	Listed
)

// known has the standing of each pattern.
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

// Look returns the standing of a pattern and, if it is absent, what to say.
func Lookup(pattern string) (Coverage, string) {
	s := coverage[pattern]
	if s != Unlisted {
		return s, ""
	}
	if remedy, ok := Remedies[strings.Replace(pattern, "spec.initContainers[]", "spec.containers[]", 1)]; ok {
		return Unlisted, remedy
	}
	return Unlisted, NotSupported
}

// maxFieldName is longer than any field's, with a typo.
const maxFieldName = 64

// Suggest returns words about an unknown field: the sibling that it looks
// like, or the place where a field of that name belongs.
func Suggest(name, parentPattern string, siblings map[string][]int) string {
	if len(name) > maxFieldName {
		return ": remove it"
	}
	best, distance := "", max(len(name)/3, 1)
	for s := range siblings {
		d := editDistance(strings.ToLower(name), strings.ToLower(s))
		if d < distance || d == distance && (best == "" || s < best) {
			best, distance = s, d
		}
	}
	if best != "" {
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

// editDistance is the number of letters to insert, delete, replace or swap
// with a neighbour to make b of a.
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

// Parent returns the path of what contains path: a.b[0] has a.b, that has a.
func Parent(path string) string {
	if i := strings.LastIndexAny(path, ".["); i >= 0 {
		return path[:i]
	}
	return ""
}
