// Package pod holds the words that the rest of Husk speaks: identities, the
// names derived from them, and what a sandbox asks of a network and gets back.
//
// It imports nothing of ours. What a client asks of a sandbox or a container
// is spelled in CRI's own messages (k8s.io/cri-api), which every owner takes
// as they are; see docs/decisions/0002.
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

// shortLength is how much of an ID a person is shown. Twelve hex digits are
// what docker, podman and crictl show.
const shortLength = 12

// NewID returns a fresh random ID of IDLength lowercase hex digits.
func NewID() string {
	var b [IDLength / 2]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand aborts the program instead
	return hex.EncodeToString(b[:])
}

// Short returns the first digits of id, as people see it.
func Short(id string) string {
	if len(id) > shortLength {
		return id[:shortLength]
	}
	return id
}

// ValidID says whether id could have come from NewID. Only such an ID may be
// made part of a path.
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

// Ref names a pod as its manifest or its API server does.
type Ref struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

// String returns namespace/name.
func (r Ref) String() string { return r.Namespace + "/" + r.Name }

// Instance tells one huskd of a host from another: four hex digits of the hash
// of its root directory. Every kernel object that Husk makes carries it in its
// name, so that a sweep never takes another instance's objects for strays.
type Instance string

// InstanceOf returns the instance that owns the root directory root.
func InstanceOf(root string) Instance {
	sum := sha256.Sum256([]byte(filepath.Clean(root)))
	return Instance(hex.EncodeToString(sum[:2]))
}

// Netns is the name under /run/netns of a sandbox's network namespace.
func (i Instance) Netns(sandbox string) string { return i.NetnsPrefix() + Short(sandbox) }

// NetnsPrefix begins every name that Netns returns.
func (i Instance) NetnsPrefix() string { return "husk-" + string(i) + "-" }

// hostLinkDigits is what IFNAMSIZ (15 usable bytes) leaves for the sandbox
// beside the prefix. Owners keep IDs apart in these digits, see Clash.
const hostLinkDigits = 9

// HostLink is the name of the host's end of a sandbox's veth pair.
func (i Instance) HostLink(sandbox string) string {
	return i.HostLinkPrefix() + sandbox[:hostLinkDigits]
}

// HostLinkPrefix begins every name that HostLink returns.
func (i Instance) HostLinkPrefix() string { return "hk" + string(i) }

// Bridge is the name of the instance's bridge, used in bridge mode only.
func (i Instance) Bridge() string { return "hkbr" + string(i) }

// Table is the name of the instance's nftables table.
func (i Instance) Table() string { return "husk-" + string(i) }

// Cgroup is the cgroup, below the root of each hierarchy, of all sandboxes
// that did not ask for a parent of their own.
func (i Instance) Cgroup() string { return "/husk-" + string(i) }

// ContainerCgroup is the cgroup of a container, or of a sandbox's infra process,
// below that of its pod. Below a slice of systemd's it is a scope.
func ContainerCgroup(parent, id string) string {
	if strings.HasSuffix(parent, ".slice") {
		return parent + "/" + ScopePrefix + "-" + id + ".scope"
	}
	return parent + "/" + id
}

// ScopePrefix begins the names of the scopes that systemd has of us.
const ScopePrefix = "cri-husk"

// Clash says whether two sandbox IDs would share a derived name.
func Clash(a, b string) bool { return a[:hostLinkDigits] == b[:hostLinkDigits] }

// String describes the instance for logs.
func (i Instance) String() string { return fmt.Sprintf("instance %s", string(i)) }

// Step is something that was done with a sandbox or a container.
type Step struct {
	Name string        `json:"Name"`
	Took time.Duration `json:"Nanoseconds"`
}
