// Package projectquota limits the space that the files of a directory take, by the project quotas
// of ext4 and XFS. A directory and the files below it belong to a project, which is a number that
// new files inherit; the file system has a limit for each project.
package projectquota

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrUnsupported says that a file system doesn't limit projects.
var ErrUnsupported = errors.New("the file system has no project quotas: mount ext4 or XFS with the option prjquota")

// Unit is the unit of limits, in bytes.
const Unit = 1024

// Usage is what a directory may take, and takes.
type Usage struct {
	Limit, Used uint64 // bytes; the limit is a multiple of Unit
}

// Set limits the files of a directory to a number of bytes, rounded up to Unit. The files that are
// there belong to the directory's project then, too. It returns ErrUnsupported if the file system
// doesn't limit projects.
func Set(dir string, limit uint64) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := enforced(d); err != nil {
		return err
	}
	attr, err := attributes(d)
	if err != nil {
		return fmt.Errorf("project of %s: %w", dir, err)
	}
	if attr.project == 0 {
		if attr.project, err = unused(d); err == nil {
			err = adopt(dir, attr.project)
		}
		if err != nil {
			return fmt.Errorf("project of %s: %w", dir, err)
		}
	}
	if err := setLimit(d, attr.project, limit); err != nil {
		return fmt.Errorf("limit of %s: %w", dir, err)
	}
	return nil
}

// Get returns the usage of a directory that Set has limited. It returns ErrUnsupported if nothing
// limits the directory's project.
func Get(dir string) (Usage, error) {
	d, err := os.Open(dir)
	if err != nil {
		return Usage{}, err
	}
	defer d.Close()
	if err := enforced(d); err != nil {
		return Usage{}, err
	}
	attr, err := attributes(d)
	if err != nil || attr.project == 0 {
		return Usage{}, errors.Join(ErrUnsupported, err)
	}
	q, err := quota(d, attr.project)
	if err != nil {
		return Usage{}, fmt.Errorf("quota of %s: %w", dir, err)
	}
	return Usage{Limit: q.hardLimit * Unit, Used: q.used}, nil
}

// Clear removes the limit of a directory that Set has limited. It is called before the directory is
// removed, so that the project's number can be used again. It does nothing for other directories.
func Clear(dir string) error {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	if enforced(d) != nil {
		return nil
	}
	attr, err := attributes(d)
	if err != nil || attr.project == 0 {
		return err
	}
	if err := setLimit(d, attr.project, 0); err != nil {
		return fmt.Errorf("limit of %s: %w", dir, err)
	}
	return nil
}

// The commands of quotactl(2) for projects, of linux/quota.h and linux/dqblk_xfs.h.
const (
	projects = 2 // PRJQUOTA
	getQuota = 0x800007<<8 | projects
	setQuota = 0x800008<<8 | projects
	getState = ('X'<<8+5)<<8 | projects // Q_XGETQSTAT, which ext4 answers too

	spaceLimits = 1           // QIF_BLIMITS: only the limits of space are set
	enforcing   = 1<<4 | 1<<5 // FS_QUOTA_PDQ_ACCT and FS_QUOTA_PDQ_ENFD
)

// dqblk is struct if_dqblk.
type dqblk struct {
	hardLimit, softLimit, used   uint64
	inodeHard, inodeSoft, inodes uint64
	blockGrace, inodeGrace       uint64
	valid                        uint32
	_                            uint32
}

// quotactl calls quotactl_fd(2), which Linux has since 5.14.
func quotactl(on *os.File, command uintptr, id uint32, data unsafe.Pointer) error {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, on.Fd(), command, uintptr(id), uintptr(data), 0, 0)
	runtime.KeepAlive(on)
	if errno != 0 {
		return errno
	}
	return nil
}

// enforced returns ErrUnsupported if the file system doesn't limit projects.
func enforced(on *os.File) error {
	var state [128]byte // struct fs_quota_stat, of 80 bytes
	err := quotactl(on, getState, 0, unsafe.Pointer(&state))
	if err != nil || binary.NativeEndian.Uint16(state[2:])&enforcing != enforcing {
		return ErrUnsupported
	}
	return nil
}

func quota(on *os.File, project uint32) (q dqblk, err error) {
	err = quotactl(on, getQuota, project, unsafe.Pointer(&q))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) { // a project without files and limits
		err = nil
	}
	return q, err
}

func setLimit(on *os.File, project uint32, limit uint64) error {
	units := (limit + Unit - 1) / Unit
	return quotactl(on, setQuota, project, unsafe.Pointer(&dqblk{hardLimit: units, softLimit: units, valid: spaceLimits}))
}

// fsxattr is struct fsxattr of linux/fs.h.
type fsxattr struct {
	flags, extentSize, extents, project, cowExtentSize uint32
	_                                                  [8]byte
}

const (
	getAttributes = 0x801c581f // FS_IOC_FSGETXATTR
	setAttributes = 0x401c5820 // FS_IOC_FSSETXATTR
	inherit       = 0x200      // FS_XFLAG_PROJINHERIT
)

func ioctl(f *os.File, command uintptr, attr *fsxattr) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), command, uintptr(unsafe.Pointer(attr)))
	runtime.KeepAlive(f)
	if errno != 0 {
		return errno
	}
	return nil
}

func attributes(f *os.File) (attr fsxattr, err error) {
	err = ioctl(f, getAttributes, &attr)
	return attr, err
}

// adopt makes a directory and all below it part of a project. Links and devices can't be: they take
// no space.
func adopt(dir string, project uint32) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !e.IsDir() && !e.Type().IsRegular() {
			return nil
		}
		f, err := root.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		attr, err := attributes(f)
		if err != nil {
			return err
		}
		attr.project = project
		if e.IsDir() {
			attr.flags |= inherit
		}
		return ioctl(f, setAttributes, &attr)
	})
}

const (
	// firstProject and projectCount are the numbers that directories get. Those that people choose
	// for /etc/projid are small.
	firstProject = 1 << 30
	projectCount = 1 << 30
	// maxProbes bounds the search for a number. Those of different directories rarely meet.
	maxProbes = 1000
)

// unused returns the number of a project that has no files and no limit.
func unused(dir *os.File) (uint32, error) {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(dir.Name()))
	for i := range uint32(maxProbes) {
		project := firstProject + (hash.Sum32()+i)%projectCount
		switch q, err := quota(dir, project); {
		case err != nil:
			return 0, err
		case q.inodes == 0 && q.used == 0 && q.hardLimit == 0:
			return project, nil
		}
	}
	return 0, errors.New("no number is free")
}
