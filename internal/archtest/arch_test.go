package archtest

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// The limits. They are for the outliers, where code becomes unreadable, not for the average.
const (
	maxFileLines     = 700
	maxFuncLines     = 120
	maxPackageLines  = 2500
	maxParams        = 5
	maxInterface     = 6
	maxFanOut        = 12
	maxStructFields  = 20
	maxStructMethods = 30
)

// imposed are methods whose parameters a library's interface prescribes.
var imposed = []string{"internal/stream/session.go: ExecInContainer", "internal/stream/session.go: AttachContainer", "internal/network/lease/etcd/explain.go: observe", "internal/network/lease/etcd/explain.go: observeStream"}

// fieldMaxima are the limits of the structs that may have more fields than maxStructFields.
var fieldMaxima = map[string]int{
	// It has one field for each part of huskd.
	"internal/daemon.daemon": 44,
	// It has one field for each part that the API translates to.
	"internal/api.Config": 22,
}

// packageMaxima are the limits of the packages that may have more lines than maxPackageLines.
var packageMaxima = map[string]int{
	// Its parts share the ledger and the lock of the kernel's objects.
	"internal/network": 2600,
	// It wires every part of huskd, and decides nothing.
	"internal/daemon": 3520,
	// The parts of a worker share the lock of its pod. A package for some of them would have to
	// forward most of what they use.
	"internal/agent": 3200,
	// What reads an image for an archive or a registry holds it in the index that removal looks at,
	// and who may use an image is written with it.
	"internal/image": 3030,
	// It parses each kind of object with one decoder and one report of problems.
	"internal/manifest": 2975,
	// The nftables table has the elements of the plans that it applies, and reads both from one node.
	"internal/network/datapath": 2950,
	// Its commands share the connection, the output and the completion of names, which a package for
	// some of them would have to be given.
	"internal/cli": 2900,
}

const module = "github.com/huskd/husk"

// sourceFile is a hand-written Go file.
type sourceFile struct {
	path string // relative to the module's root
	ast  *ast.File
	fset *token.FileSet
	size int // lines
	raw  string
}

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// load returns all hand-written Go files of the module: test files if tests is set, or else the
// others. They are parsed once.
func load(t *testing.T, tests bool) map[string][]sourceFile {
	t.Helper()
	parsed := sources
	if tests {
		parsed = testSources
	}
	pkgs, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	return pkgs
}

var (
	sources     = sync.OnceValues(func() (map[string][]sourceFile, error) { return parse(false) })
	testSources = sync.OnceValues(func() (map[string][]sourceFile, error) { return parse(true) })
)

func parse(tests bool) (map[string][]sourceFile, error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	pkgs := map[string][]sourceFile{}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin" || name == "out") {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil && path != root {
				return filepath.SkipDir // a nested module has its own rules
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") != tests {
			return nil
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if generated.Match(raw) {
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, raw, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		pkg := filepath.ToSlash(filepath.Dir(rel))
		pkgs[pkg] = append(pkgs[pkg], sourceFile{rel, file, fset, strings.Count(string(raw), "\n"), string(raw)})
		return nil
	})
	if err == nil && len(pkgs) == 0 {
		err = errors.New("no Go files found")
	}
	return pkgs, err
}

func TestMaxima(t *testing.T) {
	for pkg, files := range load(t, false) {
		lines := 0
		types := typesOf(files)
		for _, f := range files {
			lines += f.size
			if f.size > maxFileLines {
				t.Errorf("%s has %d lines, at most %d", f.path, f.size, maxFileLines)
			}
			ast.Inspect(f.ast, func(n ast.Node) bool {
				checkNode(t, f, n)
				return true
			})
		}
		if limit := max(maxPackageLines, packageMaxima[pkg]); lines > limit && !strings.HasPrefix(pkg, "test/") {
			t.Errorf("package %s has %d lines, at most %d", pkg, lines, limit)
		}
		for name := range types {
			if types.wraps(name) {
				continue // counted with the type that it wraps
			}
			limit := max(maxStructMethods, methodMaxima[pkg+"."+name])
			if n := types.methodsOf(name); n > limit {
				t.Errorf("%s.%s has %d methods, at most %d", pkg, name, n, limit)
			}
		}
	}
}

func checkNode(t *testing.T, f sourceFile, n ast.Node) {
	switch n := n.(type) {
	case *ast.FuncDecl:
		if size := f.fset.Position(n.End()).Line - f.fset.Position(n.Pos()).Line + 1; size > maxFuncLines {
			t.Errorf("%s: %s has %d lines, at most %d", f.path, n.Name.Name, size, maxFuncLines)
		}
		if got := n.Type.Params.NumFields(); got > maxParams && !slices.Contains(imposed, f.path+": "+n.Name.Name) {
			t.Errorf("%s: %s has %d parameters, at most %d", f.path, n.Name.Name, got, maxParams)
		}
	case *ast.TypeSpec:
		switch typ := n.Type.(type) {
		case *ast.InterfaceType:
			if got := typ.Methods.NumFields(); got > maxInterface {
				t.Errorf("%s: interface %s has %d methods, at most %d", f.path, n.Name.Name, got, maxInterface)
			}
		case *ast.StructType:
			limit := max(maxStructFields, fieldMaxima[filepath.ToSlash(filepath.Dir(f.path))+"."+n.Name.Name])
			if got := typ.Fields.NumFields(); got > limit {
				t.Errorf("%s: struct %s has %d fields, at most %d", f.path, n.Name.Name, got, limit)
			}
		}
	}
}

func TestEveryPackageHasOneComment(t *testing.T) {
	for pkg, files := range load(t, false) {
		docs := 0
		for _, f := range files {
			if f.ast.Doc != nil {
				docs++
			}
		}
		if docs != 1 {
			t.Errorf("package %s has %d package comments, want 1", pkg, docs)
		}
	}
}

func TestNames(t *testing.T) {
	bags := []string{"util", "utils", "common", "helper", "helpers", "misc", "lib", "shared"}
	for _, tests := range []bool{false, true} {
		for pkg, files := range load(t, tests) {
			if slices.Contains(bags, filepath.Base(pkg)) {
				t.Errorf("the name of package %s says nothing", pkg)
			}
			for _, f := range files {
				base := strings.TrimSuffix(strings.TrimSuffix(filepath.Base(f.path), ".go"), "_test")
				if slices.Contains(bags, base) {
					t.Errorf("the name of file %s says nothing", f.path)
				}
			}
		}
	}
}

// ours returns the packages of this module that f imports, without the module's name.
func ours(f sourceFile) []string {
	var out []string
	for _, imp := range f.ast.Imports {
		path, _ := strconv.Unquote(imp.Path.Value)
		if rest, ok := strings.CutPrefix(path, module+"/"); ok {
			out = append(out, rest)
		}
	}
	return out
}

// fanOutMaxima are the limits of the packages that may import more packages than maxFanOut. The
// vocabulary isn't counted: to save its import, a package would have its own words for the same.
var fanOutMaxima = map[string]int{
	// It translates for every owner. An interface for one of them, to save an import, had one
	// implementation that only forwarded. Who may use a pulled image has a type of its owner, access.
	"internal/api": 21,
	// Groups of commands have packages of their own.
	"internal/cli": 21,
	// It runs pods through all owners. To import fewer, packages would have to forward. A pull says
	// whose its login is, and a pod what it has, in the types of access. Remedies are in a package of
	// their own, so that those for a cluster aren't written beside those for a manifest again.
	"internal/agent": 20,
}

func TestFanOut(t *testing.T) {
	for pkg, files := range load(t, false) {
		seen := map[string]bool{}
		for _, f := range files {
			for _, imp := range ours(f) {
				if l, ok := layerOf(imp); !ok || l != words {
					seen[imp] = true
				}
			}
		}
		if limit := max(maxFanOut, fanOutMaxima[pkg]); len(seen) > limit && pkg != "internal/daemon" {
			t.Errorf("package %s imports %d packages of this module, at most %d", pkg, len(seen), limit)
		}
	}
}

// TestNoEmbeddedBuffers: a buffer that bounds what is written to it must not embed bytes.Buffer,
// whose ReadFrom io.Copy prefers to the Write that has the bound.
func TestNoEmbeddedBuffers(t *testing.T) {
	for _, files := range load(t, false) {
		for _, f := range files {
			ast.Inspect(f.ast, func(n ast.Node) bool {
				s, ok := n.(*ast.StructType)
				if !ok {
					return true
				}
				for _, field := range s.Fields.List {
					if x, ok := field.Type.(*ast.SelectorExpr); ok && len(field.Names) == 0 && x.Sel.Name == "Buffer" {
						t.Errorf("%s embeds a buffer: name the field", f.fset.Position(field.Pos()))
					}
				}
				return true
			})
		}
	}
}
