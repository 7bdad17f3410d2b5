package config

import "path"

// Disk is what keeps it from filling up.
type Disk struct {
	LogMaxSize  int      `key:"log-max-size" help:"how large, in MiB, the log of a container of the agent becomes before it is rotated; 0 for no limit"`
	LogMaxFiles int      `key:"log-max-files" help:"how many files such a log has at most; all but the two last are compressed"`
	ImageHigh   int      `key:"image-gc-high" help:"how full, in percent, the disk is when images that nobody uses begin to be removed; 100 for never"`
	ImageLow    int      `key:"image-gc-low" help:"and how full when that ends"`
	ImageAge    int      `key:"image-gc-min-age" help:"how long, in seconds, an image has been here before it is removed so"`
	Pinned      []string `key:"pinned-images" help:"whole names of images that are never removed so; * stands for any characters but /"`
}

// kubeletDisk are the kubelet's defaults.
var kubeletDisk = Disk{LogMaxSize: 10, LogMaxFiles: 5, ImageHigh: 85, ImageLow: 80, ImageAge: 120}

func (c *Config) checkDisk(bad func(key, format string, args ...any)) {
	if c.LogMaxSize < 0 {
		bad("log-max-size", "%d: at least 0", c.LogMaxSize)
	}
	if c.LogMaxFiles < 2 {
		bad("log-max-files", "%d: at least 2", c.LogMaxFiles)
	}
	if c.ImageHigh < 0 || c.ImageHigh > 100 {
		bad("image-gc-high", "%d: it is a percentage", c.ImageHigh)
	}
	if c.ImageLow < 0 || c.ImageLow > c.ImageHigh {
		bad("image-gc-low", "%d: it is a percentage, and not above image-gc-high, which is %d", c.ImageLow, c.ImageHigh)
	}
	if c.ImageAge < 0 {
		bad("image-gc-min-age", "%d: at least 0", c.ImageAge)
	}
	for _, pattern := range c.Pinned {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			bad("pinned-images", "%q is not a pattern such as registry.example/base/*", pattern)
		}
	}
}
