package container

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// mountFlags are the mount options that a user namespace can't drop, by their flags of statfs.
var mountFlags = []struct {
	flag   int64
	option string
}{{unix.ST_NOSUID, "nosuid"}, {unix.ST_NODEV, "nodev"}, {unix.ST_NOEXEC, "noexec"}}

// keepMountFlags adds to the bind mounts of a container in a user namespace the options that their
// sources have. The kernel refuses to remount them without these (mount_namespaces(7)), and runc
// before 1.2 remounts a read-only mount with no options but those of the spec.
func keepMountFlags(s *specs.Spec) {
	if !slices.ContainsFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.UserNamespace }) {
		return
	}
	for i, m := range s.Mounts {
		var st unix.Statfs_t
		if m.Type != "bind" || unix.Statfs(m.Source, &st) != nil {
			continue // the runtime reports a source that doesn't exist
		}
		for _, f := range mountFlags {
			if st.Flags&f.flag != 0 && !slices.Contains(m.Options, f.option) {
				s.Mounts[i].Options = append(s.Mounts[i].Options, f.option)
			}
		}
	}
}
