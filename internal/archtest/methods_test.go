package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"testing"
)

// methodMaxima are the limits of the types that may have more methods than maxStructMethods, as
// methodsOf counts them.
var methodMaxima = map[string]int{
	// CRI's two gRPC services have 37 methods between them, which share one view of the node.
	"internal/cri.runtimeService": 61,
	// It has a method for each verb of images, one of which asks who may use them, and a pull and a
	// load embed it.
	"internal/image.Store":      32,
	"internal/image.puller":     39,
	"internal/image.loader":     37,
	"internal/cri.imageService": 70,
	"internal/cri.view":         61,
	// It has those of its parts, one for each question about them.
	"internal/config.Config": 32,
	// It has one for each verb of users, of sources and of other owners, and for each question of the
	// edges.
	"internal/agent.Agent": 36,
	// It has a method for each verb of users and for each source of changes.
	"internal/workload/controller.Controller": 33,
	// It has a method for each call of the API.
	"internal/api.Server": 41,
	// Eleven of them are External's, which is what other runtimes see of it, and twelve Paths', which
	// explains connections.
	"internal/network.Network": 59,
	// It makes, compares, removes and watches each kind of object, looks up routes, and counts drops.
	"internal/network/datapath.Datapath": 38,
	// It has methods for each part of huskd, and those with which it is only a network.
	"internal/daemon.daemon": 41,
	// Four of them are Workloads', by which nodes tell each other of their pods. Three are of nodes
	// with another name, and two of what etcd has lost.
	"internal/network/lease/etcd.Store": 39,
	// It has a method for each action's result, and takes over what the node has under another name.
	"internal/network/lease/claim.State": 38,
	// It has those of network.Policy, of policy.Source's callers, of a source in doubt, and of what
	// husk net shows.
	"internal/network/firewall.Firewall": 32,
	// It changes, compares, maintains and removes the table, ends flows, and reads what was counted.
	"internal/network/policytable.Table": 31,
	// Pure: each method decides or translates one part of one value, and none keeps state.
	"internal/agent/podplan.planner": 46,
	"internal/manifest.validator":    49,
	"internal/oci/spec.builder":      45,
	// Only tests use it.
	"internal/cli/huskdtest.Huskd": 47,
}

// types are the named types of one package, by name.
type types map[string]*typeInfo

type typeInfo struct {
	methods  int      // declared on the type itself
	embedded []string // types of the same package that the struct embeds, by value or pointer
	// wrapped is the type that a struct only wraps: a pointer to it is the struct's one field.
	wrapped string
}

func typesOf(files []sourceFile) types {
	out := types{}
	info := func(name string) *typeInfo {
		if out[name] == nil {
			out[name] = &typeInfo{}
		}
		return out[name]
	}
	for _, f := range files {
		for _, decl := range f.ast.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Recv != nil {
					info(typeName(d.Recv.List[0].Type)).methods++
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if typ, ok := spec.(*ast.TypeSpec); ok {
						info(typ.Name.Name).readFields(typ.Type)
					}
				}
			}
		}
	}
	return out
}

func (i *typeInfo) readFields(typ ast.Expr) {
	s, ok := typ.(*ast.StructType)
	if !ok {
		return
	}
	for _, field := range s.Fields.List {
		if name := typeName(field.Type); len(field.Names) == 0 && name != "" {
			i.embedded = append(i.embedded, name)
		}
	}
	if s.Fields.NumFields() == 1 {
		if pointer, ok := s.Fields.List[0].Type.(*ast.StarExpr); ok {
			i.wrapped = typeName(pointer)
		}
	}
}

// methodsOf returns how many methods a reader has to know for a type: its own, those of the types
// that it embeds, and those of the types that only wrap a pointer to it. Splitting a type into
// wrappers or embedded halves of the same package doesn't change the count.
func (t types) methodsOf(name string) int { return t.count(name, map[string]bool{}) }

// count adds up the methods of a type and its relatives, each once.
func (t types) count(name string, seen map[string]bool) int {
	if t[name] == nil || seen[name] {
		return 0
	}
	seen[name] = true
	n := t[name].methods
	for _, embedded := range t[name].embedded {
		n += t.count(embedded, seen)
	}
	for wrapper, info := range t {
		if info.wrapped == name {
			n += t.count(wrapper, seen)
		}
	}
	return n
}

// wraps reports whether a type only wraps a pointer to another type of the package.
func (t types) wraps(name string) bool { return t[t[name].wrapped] != nil }

// typeName returns the name of a type of the same package, without pointer and type arguments. It
// is empty for all other types.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.IndexListExpr:
		return typeName(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

func TestMethodsAreCountedThroughEmbedding(t *testing.T) {
	const source = `package p
		type base struct{ n int }
		func (*base) A() {}
		func (*base) B() {}
		type embeds struct { base; m int }
		func (embeds) C() {}
		type wraps struct{ *embeds }
		func (wraps) D() {}
		type wrapsByName[T any] struct{ e *embeds }
		func (wrapsByName[T]) E() {}
		type uses struct{ b *base; n int }
		func (uses) F() {}
		type foreign struct{ *ast.File }
		func (foreign) G() {}`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	types := typesOf([]sourceFile{{ast: file}})
	for name, want := range map[string]int{"base": 2, "embeds": 5, "wraps": 5, "wrapsByName": 1, "uses": 1, "foreign": 1} {
		if got := types.methodsOf(name); got != want {
			t.Errorf("%s has %d methods, want %d", name, got, want)
		}
	}
}
