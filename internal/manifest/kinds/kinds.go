// Package kinds has the table of the Kubernetes objects that may be in a manifest although a node
// without a cluster does nothing with them. It is pure.
package kinds

import (
	"slices"
	"strings"
)

// Unused is a kind of objects that manifests may have beside pods.
type Unused struct {
	Group string // empty for the core group
	Kind  string
	// Why says what isn't done with it and, if there is one, what to use instead.
	Why string
}

// Reasons that several kinds share.
const (
	noAPI     = "there is no API server"
	noIngress = "there is no ingress controller: give a container a hostPort, or use a Service of type NodePort"
	noStorage = "volumes are directories of this node"
	noService = "service-proxy is off: use the addresses of the pods"
	noQuota   = "it is not enforced: set limits on the pods"
)

var unused = []Unused{
	{"", "ServiceAccount", "there are no service accounts without an API server"},
	{"", "Namespace", "namespaces need not be declared; their labels count in the manifests directory, if network policies are enforced"},
	{"", "Service", noService},
	{"", "Endpoints", noService},
	{"", "ResourceQuota", noQuota},
	{"", "LimitRange", noQuota},
	{"admissionregistration.k8s.io", "", noAPI},
	{"apiextensions.k8s.io", "CustomResourceDefinition", noAPI},
	{"apiregistration.k8s.io", "APIService", noAPI},
	{"autoscaling", "HorizontalPodAutoscaler", "pods are not scaled by their load"},
	{"certificates.k8s.io", "", noAPI},
	{"discovery.k8s.io", "EndpointSlice", noService},
	{"gateway.networking.k8s.io", "", noIngress},
	{"networking.k8s.io", "Ingress", noIngress},
	{"networking.k8s.io", "IngressClass", noIngress},
	{"node.k8s.io", "RuntimeClass", "runtime handlers are in the configuration, [runtimes.NAME]"},
	{"policy", "PodDisruptionBudget", "pods of one node are not drained to another"},
	{"rbac.authorization.k8s.io", "", "there is no API server to allow anything at"},
	{"resource.k8s.io", "", "devices are not allocated by claims"},
	{"scheduling.k8s.io", "PriorityClass", "the pods of manifests have no priorities"},
	{"storage.k8s.io", "", noStorage},
	{"snapshot.storage.k8s.io", "", noStorage},
}

// builtIn are the groups without a dot. Kinds of other groups are custom resources, unless the
// table has them.
var builtIn = []string{"", "apps", "autoscaling", "batch", "extensions", "policy"}

// Lookup returns why nothing is done with an object, and whether a manifest may have it. A manifest
// may not have a kind that is misspelt or that Husk refuses.
func Lookup(apiVersion, kind string) (why string, ok bool) {
	group := groupOf(apiVersion)
	i := slices.IndexFunc(unused, func(u Unused) bool { return u.Group == group && (u.Kind == kind || u.Kind == "") })
	switch {
	case i >= 0:
		return unused[i].Why, true
	case slices.Contains(builtIn, group) || strings.HasSuffix(group, ".k8s.io") || !strings.Contains(group, "."):
		return "", false
	}
	return "it is of a custom resource, which only its controller understands", true
}

func groupOf(apiVersion string) string {
	group, _, found := strings.Cut(apiVersion, "/")
	if !found {
		return ""
	}
	return group
}

// Reference returns the section of the manifest reference about these kinds, in Markdown.
func Reference() string {
	var b strings.Builder
	b.WriteString(`
## Objects without effect

Without a cluster, nothing is done with these objects and with those of custom resources. ` + "`husk run`" + ` says so, and an
event of the reason Unused does for files in the manifests directory.

| group | kind | why |
|---|---|---|
`)
	for _, u := range unused {
		group, kind := u.Group, u.Kind
		if group == "" {
			group = "v1"
		}
		if kind == "" {
			kind = "all"
		}
		b.WriteString("| `" + group + "` | " + kind + " | " + u.Why + " |\n")
	}
	return b.String()
}
