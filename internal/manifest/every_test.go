package manifest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest/fields"
	"github.com/huskd/husk/internal/manifest/remedy"
)

// everyField calls f with the pattern of each field of t, and descends into the field if f returns
// true.
func everyField(t reflect.Type, pattern string, f func(pattern string) bool) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		if t.Kind() == reflect.Slice {
			pattern += "[]"
		}
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return
	}
	names := map[string][]int{}
	jsonFields(t, nil, names)
	for name, index := range names {
		of := t.FieldByIndex(index).Type
		below := pattern + "." + name
		if f(below) {
			everyField(of, below, f)
		}
	}
}

// documentWith returns a pod with a value at a pattern.
func documentWith(t *testing.T, pattern string) []byte {
	t.Helper()
	var value any = "x"
	parts := strings.Split(pattern, ".")
	for i := len(parts) - 1; i >= 0; i-- {
		name, list := strings.CutSuffix(parts[i], "[]")
		if list {
			value = []any{value}
		}
		value = map[string]any{name: value}
	}
	doc := value.(map[string]any)
	doc["apiVersion"], doc["kind"], doc["metadata"] = "v1", "Pod", map[string]any{"name": "a"}
	out, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestEveryField checks that each field of a pod's spec is either in the table or refused by its
// path.
func TestEveryField(t *testing.T) {
	t.Parallel()
	listed, refused := 0, 0
	everyField(reflect.TypeFor[corev1.PodSpec](), "spec", func(pattern string) bool {
		standing, _ := fields.Lookup(pattern, remedy.Manifest)
		switch standing {
		case fields.Listed:
			listed++
			return false
		case fields.Partial:
			return true
		}
		refused++
		_, err := Parse(documentWith(t, pattern), Origin{File: "f", Node: "n"})
		path := strings.ReplaceAll(pattern, "[]", "[0]")
		if err == nil || !strings.Contains(err.Error(), path+": ") {
			t.Errorf("%s is neither honoured nor refused: %v", pattern, err)
		}
		return false
	})
	t.Logf("%d fields are listed, including those below them; %d are refused", listed, refused)
	if listed < 100 || refused < 30 {
		t.Errorf("only %d listed and %d refused fields: the test doesn't visit all of them", listed, refused)
	}
}

// TestIgnored checks that exactly those fields are returned that are set and have no effect.
func TestIgnored(t *testing.T) {
	t.Parallel()
	text := func(spec string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers: [{name: c, image: i}]\n" + spec
	}
	parsed := func(spec string) *corev1.Pod {
		file, err := Parse([]byte(text(spec)), Origin{Node: "n"})
		if err != nil {
			t.Fatal(err)
		}
		return &file.Pods[0]
	}
	if got := Ignored(parsed("  nodeName: x\n  enableServiceLinks: false\n  tolerations: []\n")); len(got) > 0 {
		t.Errorf("%v are returned, but nothing is set", got)
	}
	var want []string
	for path, value := range map[string]string{
		"nodeSelector": "{a: b}", "tolerations": "[{operator: Exists}]", "priority: 7\n  #": "", "schedulerName": "x", "priorityClassName": "x",
		"preemptionPolicy": "Never", "topologySpreadConstraints": "[{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule}]",
		"affinity": "{nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {}}]}}", "readinessGates": "[{conditionType: a}]",
		"automountServiceAccountToken": "true", "serviceAccount": "a", "serviceAccountName": "a",
		"volumes[].projected.sources[].serviceAccountToken": "[{name: v, projected: {sources: [{serviceAccountToken: {path: a}}]}}]",
		"securityContext.fsGroupChangePolicy":               "Always", "securityContext.seLinuxChangePolicy": "Recursive", "securityContext.windowsOptions": "{runAsUserName: x}",
		"initContainers[].securityContext.windowsOptions": "{name: i, image: i, securityContext: {windowsOptions: {runAsUserName: x}}}",
	} {
		name, _, _ := strings.Cut(path, ":")
		if field, ok := strings.CutPrefix(path, "securityContext."); ok {
			path, value = "securityContext", "{"+field+": "+value+"}"
		} else if strings.HasPrefix(path, "initContainers[]") {
			path, value = "initContainers", "["+value+"]"
		} else if strings.HasPrefix(path, "volumes[]") {
			path = "volumes"
		}
		want = append(want, "spec."+name)
		if got := Ignored(parsed(fmt.Sprintf("  %s: %s\n", path, value))); !slices.Equal(got, []string{"spec." + name}) {
			t.Errorf("%s: got %v", path, got)
		}
	}
	for _, f := range fields.All() {
		if f.How == fields.Ignored && strings.HasPrefix(f.Path, "spec.") && f.Path != "spec.nodeName" && !strings.HasPrefix(f.Path, "spec.containers[]") && !slices.Contains(want, f.Path) {
			t.Errorf("the test doesn't cover %s", f.Path)
		}
	}
}
