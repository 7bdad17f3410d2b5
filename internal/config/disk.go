package config

import (
	"path"
	"path/filepath"
)

// Disk configures what keeps the disk from filling up.
type Disk struct {
	PodLogs     string   `key:"pod-logs-dir" help:"directory of the logs of pods, except those of a kubelet. The directory containers beside it has links to the logs of containers, for log collectors. If empty: /var/log/pods with a kubeconfig and the default root, logs/pods below root otherwise"`
	LogMaxSize  int      `key:"log-max-size" help:"size in MiB at which huskd rotates the logs of containers, except those of a kubelet; 0 for no limit. A container that writes fast exceeds it by what it writes in some hundredths of a second, and while huskd is stopped nothing is rotated"`
	LogMaxFiles int      `key:"log-max-files" help:"maximum number of files of such a log; all but the newest two are compressed"`
	ImageHigh   int      `key:"image-gc-high" help:"disk usage in percent at which huskd starts to remove unused images; 100 for never"`
	ImageLow    int      `key:"image-gc-low" help:"disk usage in percent down to which it removes them"`
	ImageAge    int      `key:"image-gc-min-age" help:"minimum age in seconds of an image that is removed this way"`
	Pinned      []string `key:"pinned-images" help:"full names of images that are never removed this way; * matches any characters except /"`
}

// kubeletDisk holds the kubelet's defaults.
var kubeletDisk = Disk{LogMaxSize: 10, LogMaxFiles: 5, ImageHigh: 85, ImageLow: 80, ImageAge: 120}

// setPodLogs sets the default of PodLogs. A kubelet removes directories of pods that it doesn't
// know from /var/log/pods, so this is the default only where huskd is the node itself.
func (c *Config) setPodLogs(bad func(key, format string, args ...any)) {
	switch {
	case c.PodLogs == "" && c.Kubeconfig != "" && c.Root == defaultRoot:
		c.PodLogs = "/var/log/pods"
		return
	case c.PodLogs == "":
		c.PodLogs = filepath.Join(c.Root, "logs", "pods")
		return
	}
	c.PodLogs = filepath.Clean(c.PodLogs)
	if !filepath.IsAbs(c.PodLogs) || filepath.Base(c.PodLogs) == "containers" || filepath.Dir(c.PodLogs) == c.Root {
		bad("pod-logs-dir", "%q is not an absolute path of a directory that can have a directory containers beside it", c.PodLogs)
	}
}

func (c *Config) checkDisk(bad func(key, format string, args ...any)) {
	if c.LogMaxSize < 0 {
		bad("log-max-size", "%d: must be at least 0", c.LogMaxSize)
	}
	if c.LogMaxFiles < 2 {
		bad("log-max-files", "%d: must be at least 2", c.LogMaxFiles)
	}
	if c.ImageHigh < 0 || c.ImageHigh > 100 {
		bad("image-gc-high", "%d: must be a percentage", c.ImageHigh)
	}
	if c.ImageLow < 0 || c.ImageLow > c.ImageHigh {
		bad("image-gc-low", "%d: must be a percentage not above image-gc-high, which is %d", c.ImageLow, c.ImageHigh)
	}
	if c.ImageAge < 0 {
		bad("image-gc-min-age", "%d: must be at least 0", c.ImageAge)
	}
	for _, pattern := range c.Pinned {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			bad("pinned-images", "%q is not a pattern such as registry.example/base/*", pattern)
		}
	}
}
