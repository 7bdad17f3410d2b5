// Package remedy says what to do about a pod that can't run. That depends on where the pod comes
// from: who declares a manifest on a node can change the node, who declares a pod in a cluster can
// change what is in the cluster, and has other nodes. It is pure.
package remedy

import (
	"maps"
	"slices"
)

// Source is where a pod comes from.
type Source int

// The sources of pods.
const (
	Manifest Source = iota // a file, a URL or husk run
	Cluster                // an API server
)

// NodeLabel is a label of each node of huskd in a cluster, by which pods can avoid these nodes.
const NodeLabel = "husk.dev/node"

// avoid is the remedy for a pod of a cluster that needs another kind of node.
const avoid = "keep the pod away from nodes with the label " + NodeLabel

// message is a message for the pods of each source.
type message struct{ manifest, cluster string }

const notSupported = "not supported yet: remove it"

// driverVolume is the message for volumes that a storage driver or a cloud provides.
var driverVolume = message{
	"storage drivers are not supported: without a cluster, use a persistentVolumeClaim, which is a directory of the node, or a hostPath",
	"huskd has no storage drivers: " + avoid,
}

// fields are the messages for fields where the usual one isn't helpful enough. An API server
// refuses or clears those whose second message is empty.
var fields = map[string]message{
	"metadata.deletionTimestamp": {manifest: "set by an API server: remove it, or the whole manifest if the pod should not run"},
	"spec.ephemeralContainers":   {manifest: "they are added to a running pod: use husk debug"},

	"spec.volumes[].gitRepo": {"no longer in Kubernetes: clone it in an init container, to an emptyDir", "no longer in Kubernetes: clone it in an init container, to an emptyDir"},
	"spec.volumes[].nfs":     {"not supported: mount it on the node, and use a hostPath", "huskd doesn't mount nfs: mount it on the node and use a hostPath, or " + avoid},

	"spec.resourceClaims": {notSupported, "huskd has no dynamic resource allocation: " + avoid},

	"spec.volumes[].awsElasticBlockStore": driverVolume,
	"spec.volumes[].azureDisk":            driverVolume,
	"spec.volumes[].azureFile":            driverVolume,
	"spec.volumes[].cephfs":               driverVolume,
	"spec.volumes[].cinder":               driverVolume,
	"spec.volumes[].csi":                  driverVolume,
	"spec.volumes[].fc":                   driverVolume,
	"spec.volumes[].flexVolume":           driverVolume,
	"spec.volumes[].flocker":              driverVolume,
	"spec.volumes[].gcePersistentDisk":    driverVolume,
	"spec.volumes[].glusterfs":            driverVolume,
	"spec.volumes[].iscsi":                driverVolume,
	"spec.volumes[].photonPersistentDisk": driverVolume,
	"spec.volumes[].portworxVolume":       driverVolume,
	"spec.volumes[].quobyte":              driverVolume,
	"spec.volumes[].rbd":                  driverVolume,
	"spec.volumes[].scaleIO":              driverVolume,
	"spec.volumes[].storageos":            driverVolume,
	"spec.volumes[].vsphereVolume":        driverVolume,
}

// Object is the remedy for a config map or secret that doesn't exist.
func (s Source) Object() string {
	if s == Cluster {
		return "create it"
	}
	return "husk run its manifest"
}

// Image is the remedy for an image that must not be pulled and isn't present. field is the one that
// forbids the pull.
func (s Source) Image(field string) string {
	if s == Cluster {
		return "set " + field + " to IfNotPresent, or load it on the node with husk image load"
	}
	return "load it with husk image load"
}

// Field is the message for a field of a pod that Husk doesn't support, by the pattern of its path.
func (s Source) Field(pattern string) string {
	texts, ok := fields[pattern]
	if !ok {
		texts = message{notSupported, "not supported by huskd: remove it, or " + avoid}
	}
	if s == Cluster {
		return texts.cluster
	}
	return texts.manifest
}

// Claim is the message for a claim of a cluster, which Husk supports in manifests only.
func Claim() string { return driverVolume.cluster }

// Fields returns the patterns of the fields that have messages of their own, sorted.
func Fields() []string { return slices.Sorted(maps.Keys(fields)) }
