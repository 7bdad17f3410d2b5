package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	"github.com/huskd/husk/internal/kubeletconfig"
)

// Kubelet names the configuration of the kubelet that huskd replaces.
type Kubelet struct {
	KubeletConfig    string `key:"kubelet-config" help:"KubeletConfiguration of the kubelet that huskd replaces, such as /var/lib/kubelet/config.yaml. huskd translates it; the keys of its own file and flags override what it says"`
	KubeletConfigDir string `key:"kubelet-config-dir" help:"directory with drop-ins of it, the files *.conf, as for a kubelet's --config-dir"`
	// Translation is what kubelet-config says; nil without one. It can't be set.
	Translation *kubeletconfig.Translation
	// Overridden are the keys that it sets, and huskd's own file or a flag sets too.
	Overridden []string
}

// ErrNotYet is the error of a configuration that others still have to write, as kubeadm does with
// kubelet-config after huskd has started.
var ErrNotYet = errors.New("it may not be written yet")

// translate sets the options as kubelet-config says, if that is set. Those that are overridden are
// set too.
func translate(c *Config, overridden func(key string) bool) error {
	for key, path := range map[string]string{"kubelet-config": c.KubeletConfig, "kubelet-config-dir": c.KubeletConfigDir} {
		if path != "" && !filepath.IsAbs(path) {
			return fmt.Errorf("%s: %q is not an absolute path", key, path)
		}
	}
	if c.KubeletConfig == "" {
		if c.KubeletConfigDir != "" {
			return errors.New("kubelet-config-dir: set kubelet-config too: it has the drop-ins of that file")
		}
		return nil
	}
	t, err := kubeletconfig.Read(c.KubeletConfig, c.KubeletConfigDir)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", err, ErrNotYet)
	}
	if err != nil {
		return err
	}
	c.Translation = t
	for _, key := range slices.Sorted(maps.Keys(t.Values)) {
		if overridden(key) {
			c.Overridden = append(c.Overridden, key)
		}
	}
	return errors.Join(apply(c, c.KubeletConfig, t.Values)...)
}

// Origin returns from which field of kubelet-config the value of a key comes; "" if from none.
func (c *Kubelet) Origin(key string) string {
	if c.Translation == nil || slices.Contains(c.Overridden, key) {
		return ""
	}
	return c.Translation.Origin[key]
}
