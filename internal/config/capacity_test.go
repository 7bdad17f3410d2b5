package config

import (
	"io"
	"maps"
	"strings"
	"testing"
)

func TestCapacity(t *testing.T) {
	t.Parallel()
	path := file(t, "max-pods = 20\n[kube-reserved]\ncpu = \"100m\"\nmemory = \"1Gi\"\n[eviction-hard]\n\"memory.available\" = \"1Gi\"\n")
	cfg, err := Parse([]string{"--config", path, "--system-reserved", "cpu=1,pid=1000", "--eviction-soft", "memory.available<10%", "--eviction-soft-grace-period", "memory.available=1m30s"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	kube, system, err := cfg.Reserved()
	if err != nil || kube.Memory().String() != "1Gi" || system.Cpu().Value() != 1 || cfg.MaxPods != 20 {
		t.Errorf("%v %v %v", kube, system, err)
	}
	if !maps.Equal(cfg.EvictionSoft, Amounts{"memory.available": "10%"}) || !maps.Equal(cfg.EvictionHard, Amounts{"memory.available": "1Gi"}) {
		t.Errorf("%v %v", cfg.EvictionHard, cfg.EvictionSoft)
	}
	for flag, want := range map[string]string{
		"--max-pods=-1":                        "max-pods: -1: must be at least 0",
		"--memory-swap-behavior=Unlimited":     "memory-swap-behavior: \"Unlimited\" is neither NoSwap nor LimitedSwap",
		"--kube-reserved=cpu=x":                "kube-reserved: \"x\" is not a quantity of cpu",
		"--system-reserved=gpu=1":              "system-reserved: \"gpu\" can't be reserved",
		"--eviction-hard=memory=1":             "eviction: eviction-hard: \"memory\" is not one of the signals",
		"--eviction-soft=pid.available=1":      "eviction: eviction-soft: pid.available needs a duration",
		"--eviction-hard=memory.available=1%x": "eviction: eviction-hard: memory.available: \"1%x\" is neither",
		"--kube-reserved=cpu":                  "invalid argument",
	} {
		if _, err := Parse([]string{"--config", "/dev/null", flag}, io.Discard); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", flag, err)
		}
	}
	if _, err := Parse([]string{"--config", file(t, "kube-reserved = 1\nsystem-reserved = {cpu = 1}\n")}, io.Discard); err == nil ||
		!strings.Contains(err.Error(), "kube-reserved: must be a table") || !strings.Contains(err.Error(), "system-reserved: cpu must be a string") {
		t.Errorf("%v", err)
	}
}

// TestMaxPods checks that a node of a cluster runs as many pods as with a kubelet, and that a lone
// one isn't bound by that.
func TestMaxPods(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want int
	}{
		{nil, 1000},
		{[]string{"--kubeconfig", "/etc/husk/kubeconfig"}, 110},
		{[]string{"--max-pods", "200"}, 200},
		{[]string{"--kubeconfig", "/etc/husk/kubeconfig", "--max-pods", "200"}, 200},
	} {
		cfg, err := Parse(append([]string{"--config", "/dev/null"}, c.args...), io.Discard)
		if err != nil || cfg.MaxPods != c.want {
			t.Errorf("%q: %d, %v; want %d", c.args, cfg.MaxPods, err, c.want)
		}
	}
}
