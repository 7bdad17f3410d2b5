package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/claim"
	"github.com/huskd/husk/internal/projectquota"
)

// Claim is a directory that outlives the pods that use it.
type Claim struct {
	Namespace, Name string
	// Path of its files on the host.
	Path string
	// Pods are namespace/name of the pods that use it.
	Pods []string
	// Declared is what a manifest has last said of it.
	Declared claim.Claim
}

// The directory of a claim has its files in data, unless they are in a volume, to which data is a
// link then, and a file for each pod that uses it in pods.
const (
	claimData = "data"
	claimPods = "pods"
	// claimSpec is the file with what was last declared of a claim.
	claimSpec = "claim.json"
	// endedSuffix ends the name of a second file of a pod that has ended.
	endedSuffix = ".ended"
)

func (v Volumes) claims() string { return filepath.Join(v.Root, "claims") }

// using is held while a pod begins to use a claim, and while the files of a claim are replaced or
// removed.
var using sync.Mutex

// SetUpClaim sets up the claim of a pod's volume and returns its path on the host. object is nil
// if no manifest declares the claim: it then must exist already. The pod uses it until TearDown.
func (v Volumes) SetUpClaim(pod *corev1.Pod, name string, object manifest.Object) (string, error) {
	path, err := v.useClaim(pod, name, object)
	if err != nil {
		return "", err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return "", err
	}
	return path, giveToGroup(path, pod.Spec.SecurityContext.FSGroup)
}

// useClaim notes that a pod uses a claim, and makes the claim's directory.
func (v Volumes) useClaim(pod *corev1.Pod, name string, object manifest.Object) (string, error) {
	dir := filepath.Join(v.claims(), pod.Namespace, name)
	path := filepath.Join(dir, claimData)
	using.Lock()
	defer using.Unlock()
	declared, err := v.declaration(dir, object)
	if err != nil {
		return "", fmt.Errorf("claim %s/%s: %w", pod.Namespace, name, err)
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) && object == nil {
		return "", fmt.Errorf("claim %s/%s not found: declare a PersistentVolumeClaim of that name", pod.Namespace, name)
	}
	if err := os.MkdirAll(v.claims(), 0o700); err != nil {
		return "", err
	}
	users := filepath.Join(dir, claimPods)
	if err := os.MkdirAll(users, 0o755); err != nil {
		return "", err
	}
	if declared.Exclusive() {
		if other, err := otherUser(users, string(pod.UID), false); err != nil || other != "" {
			return "", errors.Join(err, fmt.Errorf("claim %s/%s is ReadWriteOncePod, and pod %s uses it: remove one of the pods", pod.Namespace, name, other))
		}
	}
	// Recorded first, so that the claim isn't removed meanwhile.
	if err := os.WriteFile(filepath.Join(users, string(pod.UID)), []byte(pod.Namespace+"/"+pod.Name), 0o600); err != nil {
		return "", err
	}
	if err := os.Remove(filepath.Join(users, string(pod.UID)+endedSuffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if object != nil {
		if err := os.WriteFile(filepath.Join(dir, claimSpec), object[claim.Key], 0o600); err != nil {
			return "", err
		}
	}
	if declared.Path != "" {
		err = v.link(declared.Path, path)
		return path, err
	}
	if err := createEmptyDir(path, pod.Spec.SecurityContext.FSGroup); err != nil {
		return "", err
	}
	return path, limit(path, declared.Size)
}

// limit limits the files of a claim to its size, if the file system can do that.
func limit(path string, size resource.Quantity) error {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() || size.Sign() <= 0 { // a link leads to the files of a PersistentVolume
		return err
	}
	if err := projectquota.Set(path, uint64(size.Value())); !errors.Is(err, projectquota.ErrUnsupported) {
		return err
	}
	return nil
}

// declaration returns what is declared of a claim, now or when it was last set up.
func (v Volumes) declaration(dir string, object manifest.Object) (claim.Claim, error) {
	if object != nil {
		return claim.Decode[claim.Claim](object)
	}
	raw, err := os.ReadFile(filepath.Join(dir, claimSpec))
	if err != nil {
		return claim.Claim{}, nil //nolint:nilerr // nothing is known of it, as of one that was imported
	}
	declared, err := claim.Decode[claim.Claim](manifest.Object{claim.Key: raw})
	declared.Path = "" // it has its files already
	return declared, err
}

// link makes path a link to the directory of a volume, which has one claim. It does nothing if the
// claim has files of its own already.
func (v Volumes) link(volume, path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	others, err := filepath.Glob(filepath.Join(v.claims(), "*", "*", claimData))
	if err != nil {
		return err
	}
	for _, other := range others {
		if target, err := os.Readlink(other); err == nil && target == volume {
			name, _ := filepath.Rel(v.claims(), filepath.Dir(other))
			return fmt.Errorf("the volume at %s is that of claim %s already: husk volume rm %s frees it", volume, name, name)
		}
	}
	if err := os.MkdirAll(volume, 0o755); err != nil {
		return err
	}
	return os.Symlink(volume, path)
}

// otherUser returns a pod other than uid that uses a claim, or "". Pods that have ended count if
// ended is set.
func otherUser(users, uid string, ended bool) (string, error) {
	entries, err := os.ReadDir(users)
	for _, e := range entries {
		if e.Name() == uid || strings.HasSuffix(e.Name(), endedSuffix) {
			continue
		}
		path := filepath.Join(users, e.Name())
		if _, err := os.Lstat(path + endedSuffix); err == nil && !ended {
			continue
		}
		name, _ := os.ReadFile(path)
		return string(name), nil
	}
	return "", err
}

// Ended notes that a pod has ended, so that another one may have a claim that only one pod at a
// time may use. The claim still can't be removed. It ends with the next SetUpClaim.
func (v Volumes) Ended(uid string) error {
	used, err := filepath.Glob(filepath.Join(v.claims(), "*", "*", claimPods, uid))
	for _, path := range used {
		err = errors.Join(err, os.WriteFile(path+endedSuffix, nil, 0o600))
	}
	return err
}

// unlimit undoes limit.
func unlimit(path string) error {
	if info, err := os.Lstat(path); err != nil || !info.IsDir() {
		return nil //nolint:nilerr // there are no files
	}
	return projectquota.Clear(path)
}

// Limited reports whether the files of a claim can't take more than its size.
func (c Claim) Limited() bool {
	u, err := projectquota.Get(c.Path)
	return err == nil && u.Limit > 0 && u.Limit-projectquota.Unit < uint64(c.Declared.Size.Value())
}

// giveToGroup gives all files to a group, unless the directory shows that they are the group's. It
// follows no links, also not those that a running pod puts in its way.
func giveToGroup(path string, group *int64) error {
	if group == nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || int64(st.Gid) == *group && st.Mode&unix.S_ISGID != 0 {
		return err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return err
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		if err := root.Lchown(name, -1, int(*group)); err != nil || e.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := root.Lstat(name)
		if err != nil {
			return err
		}
		mode := info.Mode() | 0o060
		if info.IsDir() {
			mode |= os.ModeSetgid | 0o010
		}
		return root.Chmod(name, mode)
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a file that the pod has removed meanwhile
		return err
	}
	// Last, because it shows that all is done.
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return setOwner(path, group, info.Mode().Perm())
}

// release notes that a pod uses no claim any more.
func (v Volumes) release(uid string) error {
	used, err := filepath.Glob(filepath.Join(v.claims(), "*", "*", claimPods, uid+"*"))
	for _, path := range used {
		if removeErr := os.Remove(path); err == nil && !errors.Is(removeErr, fs.ErrNotExist) {
			err = removeErr
		}
	}
	return err
}

// Claims returns all claims, sorted by namespace and name.
func (v Volumes) Claims() ([]Claim, error) {
	dirs, err := filepath.Glob(filepath.Join(v.claims(), "*", "*"))
	if err != nil {
		return nil, err
	}
	var out []Claim
	for _, dir := range dirs {
		c := Claim{Namespace: filepath.Base(filepath.Dir(dir)), Name: filepath.Base(dir)}
		if c.Path, err = filepath.EvalSymlinks(filepath.Join(dir, claimData)); err != nil {
			c.Path = filepath.Join(dir, claimData) // not set up yet, or its volume is gone
		}
		c.Declared, _ = v.declaration(dir, nil)
		entries, _ := os.ReadDir(filepath.Join(dir, claimPods))
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), endedSuffix) {
				continue
			}
			if name, err := os.ReadFile(filepath.Join(dir, claimPods, e.Name())); err == nil {
				c.Pods = append(c.Pods, string(name))
			}
		}
		out = append(out, c)
	}
	return out, nil
}

// RemoveClaim removes a claim and its files, which are lost. The files of a PersistentVolume stay.
// It refuses to remove a claim that a pod uses.
func (v Volumes) RemoveClaim(namespace, name string) error {
	dir, err := v.existing(namespace, name)
	if err != nil {
		return err
	}
	using.Lock()
	defer using.Unlock()
	if other, err := otherUser(filepath.Join(dir, claimPods), "", true); other != "" || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("claim %s/%s is used by pod %s: remove the pod first", namespace, name, other)))
	}
	if err := errors.Join(unlimit(filepath.Join(dir, claimData)), os.RemoveAll(dir)); err != nil {
		return fmt.Errorf("remove claim: %w", err)
	}
	for parent := filepath.Dir(dir); parent != v.Root && os.Remove(parent) == nil; { // fails while there are others
		parent = filepath.Dir(parent)
	}
	return nil
}
