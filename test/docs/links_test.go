package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// files returns the paths of all files in the repository with a suffix.
func files(t *testing.T, suffix string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != top && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin" || d.Name() == "out"):
			return filepath.SkipDir
		case strings.HasSuffix(path, suffix):
			rel, _ := filepath.Rel(top, path)
			found = append(found, rel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(top, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	marks   = regexp.MustCompile("[^a-z0-9 _-]")
	mention = regexp.MustCompile(`\bdocs/(?:[a-z0-9-]+/)*[a-z0-9-]+(?:\.md)?`)
	// webAddress may have a part that looks like a mention.
	webAddress = regexp.MustCompile(`https?://\S+`)
	target     = regexp.MustCompile("(?m)(?:^|`|\\$ )make ([a-z]+)\\b")
	testName   = regexp.MustCompile(`\bTest[A-Z][A-Za-z0-9]*\b`)
	testFunc   = regexp.MustCompile(`(?m)^func (Test[A-Z][A-Za-z0-9]*)\(`)
)

func TestLinksLeadSomewhere(t *testing.T) {
	for _, file := range files(t, ".md") {
		for _, m := range link.FindAllStringSubmatch(read(t, file), -1) {
			path, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(path, "://") {
				continue
			}
			to := file
			if path != "" {
				to = filepath.Join(filepath.Dir(file), path)
			}
			if _, err := os.Stat(filepath.Join(top, to)); err != nil {
				t.Errorf("%s: %s leads nowhere", file, m[1])
				continue
			}
			if anchor != "" && !anchors(read(t, to))[anchor] {
				t.Errorf("%s: %s has no heading of that name", file, m[1])
			}
		}
	}
}

// anchors returns the anchors of a document's headings.
func anchors(text string) map[string]bool {
	names := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		names[strings.ReplaceAll(marks.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return names
}

// TestCodeNamesDocuments checks that the documents that the code mentions exist.
func TestCodeNamesDocuments(t *testing.T) {
	for _, file := range files(t, ".go") {
		for _, name := range mention.FindAllString(webAddress.ReplaceAllString(read(t, file), ""), -1) {
			if found, _ := filepath.Glob(filepath.Join(top, name+"*")); len(found) == 0 && name != "docs/reference" {
				t.Errorf("%s speaks of %s, which isn't there", file, name)
			}
		}
	}
}

// TestDocumentsNameTests checks that the tests that documents name exist: docs/security.md promises
// what they hold.
func TestDocumentsNameTests(t *testing.T) {
	exist := map[string]bool{}
	for _, file := range files(t, "_test.go") {
		for _, m := range testFunc.FindAllStringSubmatch(read(t, file), -1) {
			exist[m[1]] = true
		}
	}
	for _, file := range files(t, ".md") {
		for _, name := range testName.FindAllString(read(t, file), -1) {
			if !exist[name] {
				t.Errorf("%s names %s, which isn't there", file, name)
			}
		}
	}
}

func TestMakeTargetsExist(t *testing.T) {
	makefile := read(t, "Makefile")
	for _, file := range append(files(t, ".md"), ".ci/run") {
		for _, m := range target.FindAllStringSubmatch(read(t, file), -1) {
			if !strings.Contains(makefile, "\n"+m[1]+":") {
				t.Errorf("%s: there is no make %s", file, m[1])
			}
		}
	}
}

// TestReadmeListsPages: a reader finds each page in the README's list.
func TestReadmeListsPages(t *testing.T) {
	_, list, ok := strings.Cut(read(t, "README.md"), "\n## Documentation\n")
	if !ok {
		t.Fatal("README.md has no list of documents")
	}
	for _, file := range files(t, ".md") {
		page := strings.HasPrefix(file, "docs/") && (!strings.HasPrefix(file, "docs/decisions/") || file == "docs/decisions/README.md")
		if page && strings.Count(list, "("+file+")") != 1 {
			t.Errorf("README.md lists %s %d times: name it once, for its readers", file, strings.Count(list, "("+file+")"))
		}
	}
}
