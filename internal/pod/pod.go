// Package pod has the basic types of Husk: identities, the names derived from them, and the
// attachment of a sandbox to a network.
//
// It imports no other package of Husk. Requests of clients for sandboxes and containers are CRI
// messages (k8s.io/cri-api), which all packages use as they are; see docs/decisions/0002.
package pod

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// IDLength is the length of a sandbox or container ID: 32 random bytes in hex.
const IDLength = 64

// shortLength is the number of hex digits of an ID that users see. It is the same in docker, podman
// and crictl.
const shortLength = 12

// NewID returns a random ID of IDLength lowercase hex digits.
func NewID() string {
	var b [IDLength / 2]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand aborts the program instead
	return hex.EncodeToString(b[:])
}

// Short returns the first digits of id, as users see it.
func Short(id string) string {
	if len(id) > shortLength {
		return id[:shortLength]
	}
	return id
}

// ValidID reports whether id has the form of an ID from NewID. Only such IDs may be used in paths.
func ValidID(id string) bool {
	if len(id) != IDLength {
		return false
	}
	for _, c := range id {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// Ref identifies a pod as its manifest or API server does.
type Ref struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

// String returns namespace/name.
func (r Ref) String() string { return r.Namespace + "/" + r.Name }

// Instance identifies a huskd on its host by four hex digits of the hash of its root directory. It
// is part of the names of all kernel objects that Husk creates, so that a sweep never removes the
// objects of another instance.
type Instance string

// InstanceOf returns the instance with the root directory.
func InstanceOf(root string) Instance {
	sum := sha256.Sum256([]byte(filepath.Clean(root)))
	return Instance(hex.EncodeToString(sum[:2]))
}

// Netns returns the name of a sandbox's network namespace under /run/netns.
func (i Instance) Netns(sandbox string) string { return i.NetnsPrefix() + Short(sandbox) }

// NetnsPrefix begins every name that Netns returns.
func (i Instance) NetnsPrefix() string { return "husk-" + string(i) + "-" }

// hostLinkDigits is the number of bytes that IFNAMSIZ (15 usable bytes) leaves for the sandbox
// after the prefix. IDs must differ in these digits, see Distinct.
const hostLinkDigits = 9

// HostLink returns the name of the host's end of a sandbox's veth pair.
func (i Instance) HostLink(sandbox string) string {
	return i.HostLinkPrefix() + sandbox[:hostLinkDigits]
}

// HostLinkPrefix begins every name that HostLink returns.
func (i Instance) HostLinkPrefix() string { return "hk" + string(i) }

// Bridge returns the name of the instance's bridge, which exists in bridge mode only.
func (i Instance) Bridge() string { return "hkbr" + string(i) }

// Table returns the name of the instance's nftables table.
func (i Instance) Table() string { return "husk-" + string(i) }

// PolicyTable returns the name of the instance's nftables table of network policy.
func (i Instance) PolicyTable() string { return i.Table() + "-policy" }

// ServiceTable returns the name of the instance's nftables table of Services.
func (i Instance) ServiceTable() string { return i.Table() + "-service" }

// ConnlimitTable returns the name of the instance's nftables table of pods that may begin no more
// connections.
func (i Instance) ConnlimitTable() string { return i.Table() + "-connlimit" }

// Cgroup returns the cgroup, below the root of each hierarchy, of all sandboxes that were created
// without a cgroup parent.
func (i Instance) Cgroup() string { return "/husk-" + string(i) }

// Monitors returns the cgroup of the processes that outlive huskd, which is beside that of the
// pods.
func (i Instance) Monitors() string { return i.Cgroup() + "-monitors" }

// ContainerCgroup returns the cgroup of a container, or of a sandbox's infra process, below that of
// its pod. Below a systemd slice it is a scope.
func ContainerCgroup(parent, id string) string {
	if strings.HasSuffix(parent, ".slice") {
		return parent + "/" + ScopePrefix + "-" + id + ".scope"
	}
	return parent + "/" + id
}

// ScopePrefix begins the names of Husk's systemd scopes.
const ScopePrefix = "cri-husk"

// Distinct returns the part of a sandbox ID that no other sandbox's may have, because two of them
// would have a derived name in common.
func Distinct(id string) string { return id[:hostLinkDigits] }

// Clash reports whether two sandbox IDs have a derived name in common.
func Clash(a, b string) bool { return Distinct(a) == Distinct(b) }

// String describes the instance for logs.
func (i Instance) String() string { return fmt.Sprintf("instance %s", string(i)) }

// Step is a step in creating or removing a sandbox or a container, and its duration.
type Step struct {
	Name string        `json:"Name"`
	Took time.Duration `json:"Nanoseconds"`
}
