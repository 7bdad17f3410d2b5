package conmon

import (
	"os"
	"path/filepath"
)

// Locate returns the path of an executable by its path, or by its name, which it looks up in Path;
// empty if there is none.
func Locate(name string) string {
	paths := []string{name}
	if !filepath.IsAbs(name) {
		paths = nil
		for _, dir := range filepath.SplitList(Path) {
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		if err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}
