package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/eviction"
	"github.com/huskd/husk/internal/cluster/capacity"
)

// Capacity says how much of a cluster's node its pods may use.
type Capacity struct {
	MaxPods        int     `key:"max-pods" help:"maximum number of pods on the node; 0 for 110 with a kubeconfig, as with a kubelet, and for 1000 without"`
	KubeReserved   Amounts `key:"kube-reserved" help:"resources that pods can't request because huskd needs them: cpu, memory, ephemeral-storage and pid. In the file a table"`
	SystemReserved Amounts `key:"system-reserved" help:"resources that pods can't request because the system needs them, likewise"`
	EvictionHard   Amounts `key:"eviction-hard" help:"thresholds below which a pod is evicted at once: quantities or percentages by signal, which are memory.available, nodefs.available, nodefs.inodesFree, imagefs.available, imagefs.inodesFree and pid.available. Signals that aren't named keep the kubelet's thresholds; 0% turns one off. In the file a table"`
	EvictionSoft   Amounts `key:"eviction-soft" help:"thresholds below which a pod is evicted after a grace period, likewise"`
	EvictionGrace  Amounts `key:"eviction-soft-grace-period" help:"grace periods of these thresholds, such as 90s, by signal"`
	SwapBehavior   string  `key:"memory-swap-behavior" help:"how containers of Burstable pods may use the node's swap: NoSwap, or LimitedSwap for a part of it that follows their memory request, which needs cgroup v2"`
	MinReclaim     Amounts `key:"eviction-minimum-reclaim" help:"how much more than its threshold must be available until a signal counts as resolved, by signal"`
}

// The values of memory-swap-behavior.
const (
	noSwap      = "NoSwap"
	limitedSwap = "LimitedSwap"
)

// LimitedSwap reports whether containers share the node's swap.
func (c *Capacity) LimitedSwap() bool { return c.SwapBehavior == limitedSwap }

// Reserved returns what is reserved for huskd and for the system.
func (c *Capacity) Reserved() (kube, system corev1.ResourceList, err error) {
	kube, errKube := capacity.Parse(c.KubeReserved)
	if errKube != nil {
		errKube = fmt.Errorf("kube-reserved: %w", errKube)
	}
	system, errSystem := capacity.Parse(c.SystemReserved)
	if errSystem != nil {
		errSystem = fmt.Errorf("system-reserved: %w", errSystem)
	}
	return kube, system, errors.Join(errKube, errSystem)
}

// Thresholds returns the thresholds of evictions.
func (c *Capacity) Thresholds() ([]eviction.Threshold, error) {
	return eviction.Parse(eviction.Settings{Hard: c.EvictionHard, Soft: c.EvictionSoft, SoftGrace: c.EvictionGrace, MinReclaim: c.MinReclaim})
}

// The defaults of max-pods. In a cluster it is the kubelet's, which schedulers and address ranges
// of nodes are made for. On a lone node it only keeps a slip of the pen, such as too many replicas,
// from taking the whole node: it is what huskd is measured with.
const (
	kubeletMaxPods = 110
	loneMaxPods    = 1000
)

// maxPods returns max-pods, or its default if it is 0.
func maxPods(set int, kubeconfig string) int {
	switch {
	case set != 0:
		return set
	case kubeconfig != "":
		return kubeletMaxPods
	}
	return loneMaxPods
}

func (c *Capacity) checkCapacity(bad func(key, format string, args ...any)) {
	if c.MaxPods < 0 {
		bad("max-pods", "%d: must be at least 0", c.MaxPods)
	}
	if c.SwapBehavior != noSwap && c.SwapBehavior != limitedSwap {
		bad("memory-swap-behavior", "%q is neither %s nor %s", c.SwapBehavior, noSwap, limitedSwap)
	}
	if _, err := capacity.Parse(c.KubeReserved); err != nil {
		bad("kube-reserved", "%w", err)
	}
	if _, err := capacity.Parse(c.SystemReserved); err != nil {
		bad("system-reserved", "%w", err)
	}
	if _, err := c.Thresholds(); err != nil {
		bad("eviction", "%w", err)
	}
}

// Amounts are quantities by name. As a flag they are written NAME=QUANTITY,… or, as for the
// kubelet's thresholds, NAME<QUANTITY,….
type Amounts map[string]string

// Set parses a flag, which replaces the former value.
func (a *Amounts) Set(text string) error {
	*a = Amounts{}
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		i := strings.IndexAny(part, "=<")
		if i < 1 {
			return fmt.Errorf("%q is not of the form NAME=QUANTITY", part)
		}
		(*a)[strings.TrimSpace(part[:i])] = strings.TrimSpace(part[i+1:])
	}
	return nil
}

// String returns the amounts as a flag, sorted by name.
func (a *Amounts) String() string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(*a)) {
		out = append(out, name+"="+(*a)[name])
	}
	return strings.Join(out, ",")
}

// Type names the type in huskd --help.
func (*Amounts) Type() string { return "amounts" }
