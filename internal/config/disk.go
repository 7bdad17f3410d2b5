package config

import "path"

// Disk configures what keeps the disk from filling up.
type Disk struct {
	LogMaxSize  int      `key:"log-max-size" help:"size in MiB at which huskd rotates the logs of containers, except those of a kubelet; 0 for no limit"`
	LogMaxFiles int      `key:"log-max-files" help:"maximum number of files of such a log; all but the newest two are compressed"`
	ImageHigh   int      `key:"image-gc-high" help:"disk usage in percent at which huskd starts to remove unused images; 100 for never"`
	ImageLow    int      `key:"image-gc-low" help:"disk usage in percent down to which it removes them"`
	ImageAge    int      `key:"image-gc-min-age" help:"minimum age in seconds of an image that is removed this way"`
	Pinned      []string `key:"pinned-images" help:"full names of images that are never removed this way; * matches any characters except /"`
}

// kubeletDisk holds the kubelet's defaults.
var kubeletDisk = Disk{LogMaxSize: 10, LogMaxFiles: 5, ImageHigh: 85, ImageLow: 80, ImageAge: 120}

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
