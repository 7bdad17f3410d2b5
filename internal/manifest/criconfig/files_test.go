package criconfig

import (
	"fmt"
	"strings"
	"testing"

	"github.com/huskd/husk/internal/manifest"
)

// objects are the objects that the test's pods reference.
var objects = manifest.Objects{
	"ConfigMap default/c": {"a": []byte("1"), "b": []byte("2")},
	"Secret default/s":    {"user": []byte("me")},
	"ConfigMap other/far": {"a": []byte("3")},
}

func TestFiles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ volume, want string }{
		{"configMap: {name: c}", "a=1 644, b=2 644"},
		{"configMap: {name: c, defaultMode: 0600, items: [{key: a, path: x/y, mode: 0400}, {key: b, path: z}]}", "x/y=1 400, z=2 600"},
		{"secret: {secretName: s}", "user=me 644"},
		{"secret: {secretName: none, optional: true}", ""},
		{"configMap: {name: c, optional: true, items: [{key: a, path: a}, {key: none, path: none}]}", "a=1 644"},
		{"downwardAPI: {items: [{path: l, fieldRef: {fieldPath: metadata.labels}}, {path: me, fieldRef: {fieldPath: metadata.name}}, {path: k, fieldRef: {fieldPath: \"metadata.labels['app']\"}}, {path: m, resourceFieldRef: {containerName: a, resource: limits.memory, divisor: 1Mi}}]}",
			"k=web 644, l=app=\"web\"\nq=\"\\\"\" 644, m=8 644, me=p 644"},
		{"projected: {sources: [{configMap: {name: c}}, {secret: {name: s, items: [{key: user, path: a}]}}]}", "a=me 644, b=2 644"},
		{"configMap: {name: none}", "! volume v: config map default/none not found"},
		{"configMap: {name: far}", "! volume v: config map default/far not found"},
		{"secret: {secretName: s, items: [{key: key, path: x}]}", "! volume v: secret default/s has no key \"key\""},
	} {
		p := pod(t, "  volumes: [{name: v, "+c.volume+"}]\n  containers: [{name: a, image: 'a:1', resources: {limits: {memory: 8Mi}}}]\n")
		p.Labels = map[string]string{"app": "web", "q": `"`}
		p.Name, p.Namespace = "p", "default"
		files, err := Files(p, &p.Spec.Volumes[0], objects.Of(p), node())
		var out []string
		for _, f := range files {
			out = append(out, fmt.Sprintf("%s=%s %o", f.Path, f.Data, f.Mode))
		}
		got := strings.Join(out, ", ")
		if err != nil {
			got = "! " + err.Error()
		}
		if got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.volume, got, c.want)
		}
	}
}

// TestTokenFiles checks that a service account token is readable for those whom the pod names, and
// that other files stay as the volume says. The rule is the kubelet's.
func TestTokenFiles(t *testing.T) {
	t.Parallel()
	const one, both = "containers: [{name: a, image: 'a:1'%s}]", "initContainers: [{name: i, image: 'a:1'%s}]\n  containers: [{name: a, image: 'a:1'%s}]"
	user := func(id int) string { return fmt.Sprintf(", securityContext: {runAsUser: %d}", id) }
	for spec, want := range map[string]string{
		fmt.Sprintf(one, ""):                                                                    "640 nobody's",
		fmt.Sprintf(one, user(0)):                                                               "600 0",
		fmt.Sprintf(one, user(7)):                                                               "600 7",
		fmt.Sprintf(both, user(7), user(7)):                                                     "600 7",
		fmt.Sprintf(both, user(7), user(8)):                                                     "640 nobody's",
		fmt.Sprintf(both, user(7), ""):                                                          "640 nobody's",
		fmt.Sprintf(both, "", user(7)):                                                          "640 nobody's",
		"securityContext: {runAsUser: 9}\n  " + fmt.Sprintf(both, "", ""):                       "600 9",
		"securityContext: {runAsUser: 9}\n  " + fmt.Sprintf(both, "", user(7)):                  "640 nobody's",
		"securityContext: {fsGroup: 5}\n  " + fmt.Sprintf(one, ""):                              "600 nobody's",
		"securityContext: {fsGroup: 5, runAsUser: 9}\n  " + fmt.Sprintf(both, user(3), user(3)): "600 3",
	} {
		p := pod(t, "  volumes: [{name: v, projected: {defaultMode: 0640, sources: [{secret: {name: token.u.0, items: [{key: token, path: token}]}}, {configMap: {name: c, items: [{key: a, path: a}]}}]}}]\n  "+spec+"\n")
		p.Name, p.Namespace, p.UID = "p", "default", "u"
		with := objects.Of(p)
		with[manifest.ObjectKey(manifest.KindSecret, "default", "token.u.0")] = manifest.Object{"token": []byte("t")}
		files, err := Files(p, &p.Spec.Volumes[0], with, node())
		if err != nil || len(files) != 2 {
			t.Fatalf("%s: %v, %v", spec, files, err)
		}
		got := fmt.Sprintf("%o nobody's", files[1].Mode)
		if files[1].User != nil {
			got = fmt.Sprintf("%o %d", files[1].Mode, *files[1].User)
		}
		if got != want || files[0].Mode != 0o640 || files[0].User != nil {
			t.Errorf("%s: the token's mode and owner are %s, want %s; the other file is %+v", spec, got, want, files[0])
		}
	}
}

func TestSubPaths(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ mount, want string }{
		{"subPath: a/b", "map[0:a/b]"},
		{"readOnly: true", "map[]"},
		{"subPathExpr: $(A)/x", "map[0:one/x]"},
		{"subPathExpr: $(C)", "map[0:1]"},
		{"subPathExpr: $(NONE)", `! container "a": volumeMounts[0].subPathExpr: "$(NONE)" expands to "$(NONE)": set all of its variables in env`},
		{"subPathExpr: $(EMPTY)", `! container "a": volumeMounts[0].subPathExpr: "$(EMPTY)" expands to "": set all of its variables in env`},
		{"subPathExpr: $(UP)/etc", `! container "a": volumeMounts[0].subPathExpr: "../../etc" is not a path inside the volume`},
		{"subPathExpr: $(ROOT)", `! container "a": volumeMounts[0].subPathExpr: "/etc" is not a path inside the volume`},
	} {
		p := pod(t, "  volumes: [{name: v}]\n  containers: [{name: a, image: 'a:1', volumeMounts: [{name: v, mountPath: /v, "+c.mount+
			"}], env: [{name: A, value: one}, {name: EMPTY}, {name: UP, value: ../..}, {name: ROOT, value: /etc}, {name: C, valueFrom: {configMapKeyRef: {name: c, key: a}}}]}]\n")
		p.Namespace = "default"
		parts, err := SubPaths(p, &p.Spec.Containers[0], Run{Objects: objects}, node())
		got := fmt.Sprint(parts)
		if err != nil {
			got = "! " + err.Error()
		}
		if got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.mount, got, c.want)
		}
	}
}
