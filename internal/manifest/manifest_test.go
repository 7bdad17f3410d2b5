package manifest

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/golden"
	"github.com/huskd/husk/internal/manifest/document"
	"github.com/huskd/husk/internal/manifest/fields"
	"github.com/huskd/husk/internal/manifest/identity"
	"github.com/huskd/husk/internal/manifest/remedy"
)

func origin(file string) Origin {
	return Origin{File: file, Node: "node", Source: "file:/etc/husk/" + file}
}

// inputs returns the manifests in a directory of testdata.
func inputs(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, ".golden") })
	if len(files) == 0 {
		t.Fatalf("no manifests in %s", dir)
	}
	return files
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestBadManifests(t *testing.T) {
	t.Parallel()
	for _, file := range inputs(t, "bad") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			f, err := Parse(read(t, file), origin(filepath.Base(file)))
			pods := f.Pods
			if err == nil || pods != nil || !errdefs.IsInvalidArgument(err) {
				t.Fatalf("%d pods, %v", len(pods), err)
			}
			for _, line := range strings.Split(err.Error(), "\n") {
				if !strings.HasPrefix(line, filepath.Base(file)+":") {
					t.Errorf("line %q doesn't begin with the name of the file", line)
				}
			}
			golden.Check(t, file+".golden", err.Error()+"\n")
		})
	}
}

func TestGoodManifests(t *testing.T) {
	t.Parallel()
	for _, file := range inputs(t, "good") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			f, err := Parse(read(t, file), origin(filepath.Base(file)))
			if err != nil {
				t.Fatal(err)
			}
			got, err := json.MarshalIndent(f.Pods, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range slices.Sorted(maps.Keys(f.Objects)) {
				got = fmt.Appendf(got, "\n%s: %q", key, f.Objects[key])
			}
			golden.Check(t, file+".golden", string(got)+"\n")
		})
	}
}

// parseOne parses a valid manifest with one pod.
func parseOne(t *testing.T, text string) corev1.Pod {
	t.Helper()
	f, err := Parse([]byte(text), origin("pod.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	pods := f.Pods
	if len(pods) != 1 {
		t.Fatalf("%d pods", len(pods))
	}
	return pods[0]
}

const web = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers: [{name: a, image: 'a:1'}]\n"

func TestSize(t *testing.T) {
	t.Parallel()
	large := web + "#" + strings.Repeat("x", document.MaxSize)
	if _, err := Parse([]byte(large), origin("f")); err == nil || err.Error() != "f: larger than 10 MiB" {
		t.Errorf("%v", err)
	}
	parseOne(t, large[:document.MaxSize])
}

// TestBombs parses small files that would be large in memory.
func TestBombs(t *testing.T) {
	t.Parallel()
	laughs := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c <= 'z'; c++ {
		laughs += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.Repeat(fmt.Sprintf("*%c,", c-1), 10))
	}
	long := "apiVersion: v1\nkind: Pod\nmetadata:\n  name: x\n  annotations:\n    a: &a " + strings.Repeat("x", 1<<20) + "\n    b: [" + strings.Repeat("*a,", 1000) + "*a]\n"
	deep := strings.Repeat("[", 5000)
	var many, flows strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&many, "field%d: 1\n", i)
		fmt.Fprintf(&flows, "k%d: 1, ", i)
	}
	manyFields, flow, flow2 := web+many.String(), flows.String(), many.String()
	for name, c := range map[string]struct{ manifest, want string }{
		"aliases of aliases":    {laughs, "expand to more than 10 MiB"},
		"aliases of a long one": {long, "expand to more than 10 MiB"},
		"deep":                  {deep, ""},
		"deep and whole":        {deep + strings.Repeat("]", 5000), "nested deeper than 100"},
		"deep JSON":             {`{"a":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + "}", "nested deeper than 100"},
		"exponent":              {strings.Replace(web, "'a:1'", "'a:1', resources: {limits: {cpu: 1e2147483647}}", 1), "is not a quantity"},
		"exponent of a size":    {strings.Replace(web, "'a:1'", "'a:1', resources: {limits: {hugepages-1e2147483647: 1}}", 1), "hugepages-1e2147483647: not supported"},
		"long field name":       {`{"apiVersion":"v1","kind":"Pod","` + strings.Repeat("k", 1<<20) + `":1}`, "unknown field: remove it"},
		"many fields":           {manyFields, "f: and 19950 more problems"},
		"a large merge":         {"x: &x {" + flow + "}\n<<: *x\n" + flow2, "kind: missing"},
		"many problems":         {web + strings.Repeat("? x\n", 20000), "f: and 199"},
	} {
		_, err := Parse([]byte(c.manifest), origin("f"))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %.200v", name, err)
		}
	}
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	uidOf := func(manifest string, o Origin) string {
		pods, err := Parse([]byte(manifest), o)
		if err != nil {
			t.Fatal(err)
		}
		return string(pods.Pods[0].UID)
	}
	first := uidOf(web, origin("a"))
	if !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(first) {
		t.Errorf("UID %q", first)
	}
	same := map[string]string{
		"read again":           web,
		"a default written":    strings.Replace(web, "spec:", "spec:\n  restartPolicy: Always", 1),
		"as good as absent":    strings.Replace(web, "spec:", "spec:\n  affinity: {}\n  subdomain: ''\n  automountServiceAccountToken: false", 1),
		"an ignored field set": strings.Replace(web, "spec:", "spec:\n  nodeName: x\n  tolerations: [{operator: Exists}]", 1) + "status: {phase: Running}\n",
		"in JSON":              `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"containers":[{"image":"a:1","name":"a"}]}}`,
	}
	for name, manifest := range same {
		if got := uidOf(manifest, origin("a")); got != first {
			t.Errorf("%s: the UID has changed", name)
		}
	}
	for name, manifest := range map[string]string{
		"another image": strings.Replace(web, "a:1", "a:2", 1),
		"another name":  strings.Replace(web, "name: web", "name: web2", 1),
		"a label":       strings.Replace(web, "name: web", "name: web, labels: {a: b}", 1),
		"an annotation": strings.Replace(web, "name: web", "name: web, annotations: {a: b}", 1),
	} {
		if got := uidOf(manifest, origin("a")); got == first {
			t.Errorf("%s: the UID is the same", name)
		}
	}
	if uidOf(web, origin("b")) == first || uidOf(web, Origin{File: "a", Node: "node2", Source: "file:/etc/husk/a"}) == first {
		t.Error("another source or node: the UID is the same")
	}
	if got := uidOf(strings.Replace(web, "name: web", "name: web, uid: mine", 1), origin("a")); got != "mine" {
		t.Errorf("own UID: %q", got)
	}
	a, b := parseOne(t, web), parseOne(t, strings.Replace(web, "name: web", "name: web, uid: mine", 1))
	if identity.Hash(&a) != identity.Hash(&b) {
		t.Error("the hash depends on the UID")
	}
}

func TestPullPolicy(t *testing.T) {
	t.Parallel()
	for image, want := range map[string]corev1.PullPolicy{
		"web": "", "web:latest": "", "web:1": corev1.PullIfNotPresent,
		"localhost:5000/web": "", "localhost:5000/web:1": corev1.PullIfNotPresent,
		"localhost:5000/web:latest": "", "web@sha256:00": corev1.PullIfNotPresent,
		"web:latest@sha256:00": corev1.PullIfNotPresent, "a/b:c/d": "",
	} {
		if got := pullPolicy(image); got != want {
			t.Errorf("%s: %s", image, got)
		}
	}
}

func TestIsExtended(t *testing.T) {
	t.Parallel()
	for name, want := range map[corev1.ResourceName]bool{
		"example.com/gpu": true, "cpu": false, "gpu": false, "kubernetes.io/x": false, "node.kubernetes.io/x": false,
		"requests.example.com/x": false, "example.com/": false, "hugepages-2Mi": false,
	} {
		if got := IsExtended(name); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestUnused checks that objects without effect don't refuse the pods beside them, and that a
// misspelt kind does.
func TestUnused(t *testing.T) {
	t.Parallel()
	pod := "---\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: i}]}\n"
	file, err := Parse([]byte("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a}\n"+pod+"---\napiVersion: example.com/v1\nkind: Thing\n"), Origin{Node: "n"})
	if err != nil || len(file.Pods) != 1 || len(file.Unused) != 2 || file.Unused[0].Object != "ServiceAccount a" || file.Unused[1].Line != 10 {
		t.Errorf("%+v %v", file.Unused, err)
	}
	if _, err := Parse([]byte("apiVersion: v1\nkind: ServiceAcount\nmetadata: {name: a}\n"+pod), Origin{Node: "n"}); err == nil {
		t.Error("a misspelt kind is accepted")
	}
}

func TestNamespaces(t *testing.T) {
	t.Parallel()
	text := "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {team: %s}}\n"
	file, err := Parse([]byte(fmt.Sprintf(text, "a")), Origin{Node: "n", Policies: true})
	if err != nil || file.Namespaces["shop"]["team"] != "a" || len(file.Unused) > 0 {
		t.Errorf("%+v %v", file, err)
	}
	if file, err = Parse([]byte(fmt.Sprintf(text, "a")), Origin{Node: "n"}); err != nil || len(file.Unused) != 1 {
		t.Errorf("without policies: %+v %v", file, err)
	}
	if _, err = Parse([]byte(fmt.Sprintf(text, "a b")), Origin{Node: "n", Policies: true}); err == nil {
		t.Error("a bad label is accepted")
	}
}

func TestReference(t *testing.T) {
	t.Parallel()
	golden.Check(t, "testdata/reference.golden", fields.Reference())
}

// TestFieldsExist checks the paths in the tables. A misspelt one would make a valid field be
// refused.
func TestFieldsExist(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, f := range fields.All() {
		if seen[f.Path] {
			t.Errorf("%s is listed twice", f.Path)
		}
		seen[f.Path] = true
		if f.Meaning == "" || f.How != fields.Honoured && f.How != fields.Ignored {
			t.Errorf("%+v", f)
		}
		if !fieldExists(f.Path) {
			t.Errorf("%s is not a field of a pod", f.Path)
		}
	}
	for _, path := range remedy.Fields() {
		if !fieldExists(path) {
			t.Errorf("%s is not a field of a pod", path)
		}
		if standing, _ := fields.Lookup(path, remedy.Manifest); standing != fields.Unlisted {
			t.Errorf("%s has a remedy but is not refused", path)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, dir := range []string{"bad", "good"} {
		files, _ := filepath.Glob(filepath.Join("testdata", dir, "*"))
		for _, file := range files {
			if data, err := os.ReadFile(file); err == nil && !strings.HasSuffix(file, ".golden") {
				f.Add(data)
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		parsed, err := Parse(data, origin("f"))
		pods := parsed.Pods
		if err != nil {
			if len(pods) > 0 || !errdefs.IsInvalidArgument(err) {
				t.Errorf("%d pods, %v", len(pods), err)
			}
			return
		}
		if len(pods) == 0 {
			t.Error("no pods and no error")
		}
		// A parsed pod survives marshalling and parsing.
		for _, pod := range pods {
			raw, err := json.Marshal(pod)
			if err != nil {
				t.Fatal(err)
			}
			again, err := Parse(raw, origin("f"))
			if err != nil {
				t.Fatalf("%v\n%s", err, raw)
			}
			if identity.Hash(&again.Pods[0]) != identity.Hash(&pod) || again.Pods[0].UID != pod.UID {
				t.Errorf("not the same pod:\n%s", raw)
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	for b.Loop() {
		if _, err := Parse([]byte(web), origin("f")); err != nil {
			b.Fatal(err)
		}
	}
}
