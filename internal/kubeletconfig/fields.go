package kubeletconfig

import (
	"strings"
)

// kind is the type of a field's value.
type kind int

const (
	boolean kind = iota
	int32s
	int64s
	float
	text
	duration    // a string such as 1m30s
	nanoseconds // a duration, or a number of nanoseconds
	quantity
	timestamp
	texts
	numbers    // a list of 32-bit integers
	textMap    // strings by name
	boolMap    // booleans by name
	quantities // quantities by name
	textsMap   // lists of strings by name
	objects    // a list of objects, whose fields are listed as PATH[].NAME
)

// fate is what becomes of a field that a file sets.
type fate int

const (
	// translated fields become keys of huskd's configuration.
	translated fate = iota
	// silent fields have nothing to set in huskd, and nobody misses what they set.
	silent
	// missing fields ask for what huskd doesn't have. They are named.
	missing
	// refused fields close something that huskd would leave open, or ask it to be another program.
	refused
	// inner fields are those of objects in a list, which is translated or missing as a whole.
	inner
)

// field is a field of a KubeletConfiguration.
type field struct {
	path string
	kind kind
	// zero says that the zero value is a value of its own, as that of a pointer in Kubernetes' type.
	// Otherwise it counts as absent: kubeadm writes many.
	zero bool
	fate fate
	// key is the key that a translated field becomes, or those of which it is a part.
	key string
	// fits are the values with which a missing or refused field asks for what huskd does anyway.
	fits []string
	// why is the rest of the message about a missing or refused field, and what the reference says
	// of a silent one.
	why string
}

// Why several fields have the same fate.
const (
	ownLimit   = "huskd's requests have a limit of their own"
	atOnce     = "huskd notices changes at once"
	noManagers = "containers share all CPUs and NUMA nodes"
	noVolumes  = "huskd has neither persistent volumes nor FlexVolumes"
	ownRuntime = "huskd is the container runtime itself"
	noFilter   = "huskd needs no rules of iptables"
	fixedAge   = "huskd keeps the API server's answers for 2m (tokens), 5m (allowed) and 30s (denied)"
	unless     = "override it in a drop-in if the node may serve it, or use a kubelet"
)

// fieldList are all fields of kubelet.config.k8s.io/v1beta1, in the order of Kubernetes' type.
var fieldList = []field{
	{path: "kind", kind: text, fate: inner},
	{path: "apiVersion", kind: text, fate: inner},
	{path: "enableServer", kind: boolean, zero: true, fate: refused, fits: []string{"true"}, why: "huskd always serves the kubelet API on node-listen: " + unless},
	{path: "staticPodPath", kind: text, fate: translated, key: "manifests", why: "a directory, of which huskd reads the files .yaml, .yml and .json"},
	{path: "podLogsDir", kind: text, fate: translated, key: "pod-logs-dir"},
	{path: "syncFrequency", kind: duration, fate: silent, why: atOnce},
	{path: "fileCheckFrequency", kind: duration, fate: silent, why: atOnce},
	{path: "httpCheckFrequency", kind: duration, fate: translated, key: "manifest-url-interval", why: "in whole seconds, rounded up"},
	{path: "staticPodURL", kind: text, fate: translated, key: "manifest-url"},
	{path: "staticPodURLHeader", kind: textsMap, fate: translated, key: "manifest-url-header"},
	{path: "address", kind: text, fate: translated, key: "node-listen"},
	{path: "port", kind: int32s, fate: translated, key: "node-listen"},
	{path: "readOnlyPort", kind: int32s, fate: missing, why: "huskd serves nothing without authentication but /healthz: clients need port 10250 and a permission, or metrics-listen"},
	{path: "tlsCertFile", kind: text, fate: translated, key: "node-tls-cert-file"},
	{path: "tlsPrivateKeyFile", kind: text, fate: translated, key: "node-tls-private-key-file"},
	{path: "tlsCipherSuites", kind: texts, fate: translated, key: "node-tls-cipher-suites"},
	{path: "tlsCurvePreferences", kind: numbers, fate: refused, why: "huskd leaves the key exchange to Go's defaults: remove it, or set it to null in a drop-in"},
	{path: "tlsMinVersion", kind: text, fate: translated, key: "node-tls-min-version", why: "huskd has no version before 1.2"},
	{path: "rotateCertificates", kind: boolean, fate: silent, why: "huskd always renews a certificate that it has requested"},
	{path: "serverTLSBootstrap", kind: boolean, fate: translated, key: "server-tls-bootstrap"},
	{path: "authentication.x509.clientCAFile", kind: text, fate: translated, key: "node-client-ca-file"},
	{path: "authentication.webhook.enabled", kind: boolean, zero: true, fate: refused, fits: []string{"true"}, why: "huskd accepts tokens that the API server accepts: " + unless},
	{path: "authentication.webhook.cacheTTL", kind: duration, fate: missing, fits: []string{"2m"}, why: fixedAge},
	{path: "authentication.anonymous.enabled", kind: boolean, zero: true, fate: missing, fits: []string{"false"}, why: "huskd refuses anonymous clients, except at /healthz of node-healthz-listen: give them a token or a certificate"},
	{path: "authorization.mode", kind: text, fate: missing, fits: []string{"Webhook"}, why: "huskd always asks the API server: give clients the permissions that docs/cluster.md lists"},
	{path: "authorization.webhook.cacheAuthorizedTTL", kind: duration, fate: missing, fits: []string{"5m"}, why: fixedAge},
	{path: "authorization.webhook.cacheUnauthorizedTTL", kind: duration, fate: missing, fits: []string{"30s"}, why: fixedAge},
	{path: "registryPullQPS", kind: int32s, zero: true, fate: missing, fits: []string{"0"}, why: "huskd doesn't limit pulls"},
	{path: "registryBurst", kind: int32s, fate: silent, why: "huskd doesn't limit pulls"},
	{path: "imagePullCredentialsVerificationPolicy", kind: text, fate: translated, key: "image-pull-credentials-verification-policy"},
	{path: "preloadedImagesVerificationAllowlist", kind: texts, fate: translated, key: "preloaded-images-verification-allowlist"},
	{path: "eventRecordQPS", kind: int32s, zero: true, fate: silent, why: ownLimit},
	{path: "eventBurst", kind: int32s, fate: silent, why: ownLimit},
	{path: "enableDebuggingHandlers", kind: boolean, zero: true, fate: refused, fits: []string{"true"}, why: "huskd always serves logs, exec, attach and port-forward to clients with the permission: " + unless},
	{path: "enableContentionProfiling", kind: boolean, fate: missing, why: "huskd doesn't record blocked goroutines"},
	{path: "healthzPort", kind: int32s, zero: true, fate: translated, key: "node-healthz-listen"},
	{path: "healthzBindAddress", kind: text, fate: translated, key: "node-healthz-listen"},
	{path: "oomScoreAdj", kind: int32s, zero: true, fate: silent, why: "the service manager sets that of huskd"},
	{path: "clusterDomain", kind: text, fate: translated, key: "cluster-domain"},
	{path: "clusterDNS", kind: texts, fate: translated, key: "cluster-dns"},
	{path: "streamingConnectionIdleTimeout", kind: duration, fate: silent, why: "a kubelet ignores it too"},
	{path: "nodeStatusUpdateFrequency", kind: duration, fate: missing, fits: []string{"10s"}, why: "huskd looks at its node every 10s"},
	{path: "nodeStatusReportFrequency", kind: duration, fate: silent, why: "huskd reports what changes, and renews its lease"},
	{path: "nodeLeaseDurationSeconds", kind: int32s, fate: missing, fits: []string{"40"}, why: "huskd's lease lasts 40s"},
	{path: "imageMinimumGCAge", kind: duration, fate: translated, key: "image-gc-min-age", why: "in whole seconds, rounded up"},
	{path: "imageMaximumGCAge", kind: duration, fate: missing, why: "huskd removes images only if the disk is full: husk image prune -a removes all that no pod uses"},
	{path: "imageGCHighThresholdPercent", kind: int32s, zero: true, fate: translated, key: "image-gc-high"},
	{path: "imageGCLowThresholdPercent", kind: int32s, zero: true, fate: translated, key: "image-gc-low"},
	{path: "volumeStatsAggPeriod", kind: duration, fate: silent, why: "huskd reads the usage of volumes when it is asked for it"},
	{path: "kubeletCgroups", kind: text, fate: silent, why: "the service manager chooses the cgroup of huskd"},
	{path: "systemCgroups", kind: text, fate: missing, why: "huskd moves no processes of the system: use a slice of systemd"},
	{path: "cgroupRoot", kind: text, fate: missing, fits: []string{"/"}, why: "the cgroups of pods are below that of huskd's instance at the root"},
	{path: "cgroupsPerQOS", kind: boolean, zero: true, fate: missing, fits: []string{"true"}, why: "pods always have a cgroup each, below that of their QoS class"},
	{path: "cgroupDriver", kind: text, fate: translated, key: "cgroup-driver", why: "cgroupfs is used where systemd is not the init, as by a kubelet, which asks its runtime"},
	{path: "cpuManagerPolicy", kind: text, fate: missing, fits: []string{"none", "None"}, why: noManagers},
	{path: "singleProcessOOMKill", kind: boolean, zero: true, fate: missing, fits: []string{"false"}, why: "with cgroup v2 the kernel ends all processes of a container that is out of memory"},
	{path: "cpuManagerPolicyOptions", kind: textMap, fate: missing, why: noManagers},
	{path: "cpuManagerReconcilePeriod", kind: duration, fate: silent, why: noManagers},
	{path: "memoryManagerPolicy", kind: text, fate: missing, fits: []string{"None", "none"}, why: noManagers},
	{path: "topologyManagerPolicy", kind: text, fate: missing, fits: []string{"none"}, why: noManagers},
	{path: "topologyManagerScope", kind: text, fate: silent, why: noManagers},
	{path: "topologyManagerPolicyOptions", kind: textMap, fate: missing, why: noManagers},
	{path: "qosReserved", kind: textMap, fate: missing, why: "huskd reserves no memory for a QoS class: use system-reserved"},
	{path: "runtimeRequestTimeout", kind: duration, fate: silent, why: ownRuntime},
	{path: "hairpinMode", kind: text, fate: silent, why: "pods always reach themselves through a Service"},
	{path: "maxPods", kind: int32s, fate: translated, key: "max-pods"},
	{path: "podCIDR", kind: text, fate: missing, why: "set pod-subnets, which also has the prefixes of a node without a cluster"},
	{path: "podPidsLimit", kind: int64s, zero: true, fate: translated, key: "pod-pids-limit", why: "0 in place of -1"},
	{path: "resolvConf", kind: text, zero: true, fate: translated, key: "resolv-conf"},
	{path: "runOnce", kind: boolean, fate: refused, why: "huskd keeps running: use husk run --wait"},
	{path: "cpuCFSQuota", kind: boolean, zero: true, fate: missing, fits: []string{"true"}, why: "huskd always enforces CPU limits: leave them out of the pods"},
	{path: "cpuCFSQuotaPeriod", kind: duration, zero: true, fate: missing, fits: []string{"100ms"}, why: "the period of CPU limits is 100ms"},
	{path: "nodeStatusMaxImages", kind: int32s, zero: true, fate: missing, fits: []string{"50"}, why: "huskd reports its 50 largest images"},
	{path: "maxOpenFiles", kind: int64s, fate: silent, why: "the service manager sets that of huskd (LimitNOFILE)"},
	{path: "contentType", kind: text, fate: silent, why: "huskd chooses the encoding of its requests"},
	{path: "kubeAPIQPS", kind: int32s, zero: true, fate: silent, why: ownLimit},
	{path: "kubeAPIBurst", kind: int32s, fate: silent, why: ownLimit},
	{path: "serializeImagePulls", kind: boolean, zero: true, fate: missing, fits: []string{"false"}, why: "huskd pulls images in parallel"},
	{path: "maxParallelImagePulls", kind: int32s, zero: true, fate: missing, why: "huskd pulls all images in parallel"},
	{path: "evictionHard", kind: textMap, zero: true, fate: translated, key: "eviction-hard", why: "if the first file has it, signals that it doesn't name are off, 0%; signals of containerfs are left out"},
	{path: "evictionSoft", kind: textMap, fate: translated, key: "eviction-soft"},
	{path: "evictionSoftGracePeriod", kind: textMap, fate: translated, key: "eviction-soft-grace-period"},
	{path: "evictionPressureTransitionPeriod", kind: duration, fate: missing, fits: []string{"5m"}, why: "a node is under pressure until 5m after the last time"},
	{path: "evictionMaxPodGracePeriod", kind: int32s, fate: missing, why: "a pod that is evicted has two seconds to end"},
	{path: "evictionMinimumReclaim", kind: textMap, fate: translated, key: "eviction-minimum-reclaim"},
	{path: "mergeDefaultEvictionSettings", kind: boolean, zero: true, fate: translated, key: "eviction-hard", why: "only of the first file, as for a kubelet"},
	{path: "podsPerCore", kind: int32s, fate: translated, key: "max-pods", why: "times the cores of the machine, if that is less than maxPods"},
	{path: "enableControllerAttachDetach", kind: boolean, zero: true, fate: silent, why: noVolumes},
	{path: "protectKernelDefaults", kind: boolean, fate: silent, why: "huskd doesn't change the kernel's settings for memory and panics"},
	{path: "makeIPTablesUtilChains", kind: boolean, zero: true, fate: silent, why: noFilter},
	{path: "iptablesMasqueradeBit", kind: int32s, zero: true, fate: silent, why: "a kubelet ignores it too"},
	{path: "iptablesDropBit", kind: int32s, zero: true, fate: silent, why: "a kubelet ignores it too"},
	{path: "featureGates", kind: boolMap, fate: missing, why: "huskd has no feature gates: what it has is always on"},
	{path: "failSwapOn", kind: boolean, zero: true, fate: silent, why: "huskd starts on a machine with swap, and memory-swap-behavior says who may use it"},
	{path: "memorySwap.swapBehavior", kind: text, fate: translated, key: "memory-swap-behavior"},
	{path: "containerLogMaxSize", kind: text, fate: translated, key: "log-max-size", why: "in whole MiB, rounded down, but at least one"},
	{path: "containerLogMaxFiles", kind: int32s, zero: true, fate: translated, key: "log-max-files"},
	{path: "containerLogMaxWorkers", kind: int32s, zero: true, fate: silent, why: "huskd rotates each log by itself"},
	{path: "containerLogMonitorInterval", kind: duration, zero: true, fate: silent, why: "huskd looks at logs as often as they need it"},
	{path: "configMapAndSecretChangeDetectionStrategy", kind: text, fate: silent, why: "huskd watches them"},
	{path: "systemReserved", kind: textMap, fate: translated, key: "system-reserved"},
	{path: "kubeReserved", kind: textMap, fate: translated, key: "kube-reserved"},
	{path: "reservedSystemCPUs", kind: text, fate: translated, key: "system-reserved", why: "the number of the CPUs, in place of cpu in systemReserved and kubeReserved; pods aren't kept off them"},
	{path: "showHiddenMetricsForVersion", kind: text, fate: silent, why: "huskd hides no metrics"},
	{path: "systemReservedCgroup", kind: text, fate: silent, why: "only enforceNodeAllocatable makes a kubelet use it"},
	{path: "kubeReservedCgroup", kind: text, fate: silent, why: "only enforceNodeAllocatable makes a kubelet use it"},
	{path: "enforceNodeAllocatable", kind: texts, zero: true, fate: missing, fits: []string{`["pods"]`}, why: "huskd limits the cgroup of all pods, and no other: use slices of systemd for the system"},
	{path: "allowedUnsafeSysctls", kind: texts, fate: translated, key: "allowed-unsafe-sysctls"},
	{path: "defaultPodSysctls", kind: textMap, fate: missing, why: "set them in the pods, or on the node"},
	{path: "volumePluginDir", kind: text, fate: silent, why: noVolumes},
	{path: "providerID", kind: text, fate: translated, key: "provider-id"},
	{path: "kernelMemcgNotification", kind: boolean, fate: silent, why: "huskd looks at memory every ten seconds"},
	{path: "logging.format", kind: text, fate: translated, key: "log-format"},
	{path: "logging.flushFrequency", kind: nanoseconds, fate: silent, why: "huskd doesn't buffer its log"},
	{path: "logging.verbosity", kind: int32s, fate: translated, key: "log-level", why: "debug from 4 on"},
	{path: "logging.vmodule", kind: objects, fate: missing, why: "set log-level"},
	{path: "logging.vmodule[].filePattern", kind: text, fate: inner},
	{path: "logging.vmodule[].verbosity", kind: int32s, fate: inner},
	{path: "logging.options.text.splitStream", kind: boolean, fate: silent, why: "huskd logs to standard error"},
	{path: "logging.options.text.infoBufferSize", kind: quantity, fate: silent, why: "huskd doesn't buffer its log"},
	{path: "logging.options.json.splitStream", kind: boolean, fate: silent, why: "huskd logs to standard error"},
	{path: "logging.options.json.infoBufferSize", kind: quantity, fate: silent, why: "huskd doesn't buffer its log"},
	{path: "enableSystemLogHandler", kind: boolean, zero: true, fate: refused, fits: []string{"true"}, why: "huskd always serves /logs/ to clients with the permission nodes/log: " + unless},
	{path: "enableSystemLogQuery", kind: boolean, zero: true, fate: missing, fits: []string{"false"}, why: "huskd serves the files below /var/log, and no queries"},
	{path: "shutdownGracePeriod", kind: duration, fate: translated, key: "shutdown-grace-period", why: "in whole seconds, rounded up; with it, none of them are for critical pods unless the next field says so"},
	{path: "shutdownGracePeriodCriticalPods", kind: duration, fate: translated, key: "shutdown-grace-period-critical-pods"},
	{path: "shutdownGracePeriodByPodPriority", kind: objects, fate: translated, key: "shutdown-grace-period", why: "the sum of the periods, and for critical pods that of 2000000000; other priorities are named"},
	{path: "shutdownGracePeriodByPodPriority[].priority", kind: int32s, fate: inner},
	{path: "shutdownGracePeriodByPodPriority[].shutdownGracePeriodSeconds", kind: int64s, fate: inner},
	{path: "crashLoopBackOff.maxContainerRestartPeriod", kind: duration, zero: true, fate: missing, fits: []string{"5m"}, why: "a container that keeps failing is started again after at most 5m"},
	{path: "reservedMemory", kind: objects, fate: missing, why: noManagers},
	{path: "reservedMemory[].numaNode", kind: int32s, fate: inner},
	{path: "reservedMemory[].limits", kind: quantities, fate: inner},
	{path: "enableProfilingHandler", kind: boolean, zero: true, fate: refused, fits: []string{"true"}, why: "huskd always serves /debug/pprof/ to clients with the permission nodes/proxy: " + unless},
	{path: "enableDebugFlagsHandler", kind: boolean, zero: true, fate: refused, fits: []string{"true"}, why: "huskd always serves /debug/flags/v to clients with the permission nodes/proxy: " + unless},
	{path: "seccompDefault", kind: boolean, zero: true, fate: translated, key: "seccomp-default"},
	{path: "memoryThrottlingFactor", kind: float, zero: true, fate: silent, why: "only the feature gate MemoryQoS makes a kubelet use it"},
	{path: "memoryReservationPolicy", kind: text, fate: missing, fits: []string{"None"}, why: "huskd doesn't keep memory from being reclaimed"},
	{path: "registerWithTaints", kind: objects, fate: translated, key: "node-taints"},
	{path: "registerWithTaints[].key", kind: text, fate: inner},
	{path: "registerWithTaints[].value", kind: text, fate: inner},
	{path: "registerWithTaints[].effect", kind: text, fate: inner},
	{path: "registerWithTaints[].timeAdded", kind: timestamp, zero: true, fate: inner},
	{path: "registerNode", kind: boolean, zero: true, fate: refused, fits: []string{"true"}, why: "huskd registers the node of its kubeconfig: leave kubeconfig out for a machine that is no node"},
	{path: "tracing.endpoint", kind: text, zero: true, fate: translated, key: "tracing.endpoint", why: "localhost:4317 as soon as there is the object tracing"},
	{path: "tracing.samplingRatePerMillion", kind: int32s, zero: true, fate: translated, key: "tracing.sampling", why: "as a fraction, 0 by default"},
	{path: "localStorageCapacityIsolation", kind: boolean, zero: true, fate: missing, fits: []string{"true"}, why: "huskd always counts and limits ephemeral storage"},
	{path: "containerRuntimeEndpoint", kind: text, fate: silent, why: ownRuntime},
	{path: "imageServiceEndpoint", kind: text, fate: silent, why: ownRuntime},
	{path: "failCgroupV1", kind: boolean, zero: true, fate: silent, why: "huskd runs with cgroup v1 and v2"},
	{path: "userNamespaces.idsPerPod", kind: int64s, zero: true, fate: missing, fits: []string{"65536"}, why: "a pod's user namespace has 65536 IDs"},
}

// node is a place in the tree of fields: a field, or an object around fields.
type node struct {
	*field                  // nil for an object
	inside map[string]*node // by name; of an object, or of the objects in a list
}

// schema is the tree of fieldList.
var schema = func() *node {
	root := &node{inside: map[string]*node{}}
	for i := range fieldList {
		at := root
		for name := range strings.SplitSeq(strings.ReplaceAll(fieldList[i].path, "[]", ""), ".") {
			next := at.inside[name]
			if next == nil {
				next = &node{inside: map[string]*node{}}
				at.inside[name] = next
			}
			at = next
		}
		at.field = &fieldList[i]
	}
	return root
}()
