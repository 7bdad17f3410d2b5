package manifest

import (
	"reflect"
	"strings"
	"testing"

	"github.com/huskd/husk/internal/manifest/fields"
	"github.com/huskd/husk/internal/workload"
	"github.com/huskd/husk/internal/workload/convert"
)

const someWorkloads = `
apiVersion: v1
kind: List
items:
- apiVersion: apps/v1
  kind: Deployment
  metadata: {name: web, labels: {a: b}, creationTimestamp: null, generation: 2}
  spec:
    replicas: 2
    revisionHistoryLimit: 3
    selector: {matchLabels: {app: web}}
    template: &template
      metadata: {labels: {app: web}, creationTimestamp: null}
      spec: {containers: [{name: c, image: example.com/a:1}]}
  status: {replicas: 2}
- apiVersion: v1
  kind: ReplicationController
  metadata: {name: rc}
  spec: {template: *template}
- apiVersion: apps/v1
  kind: StatefulSet
  metadata: {name: db, namespace: shop}
  spec: {serviceName: db, podManagementPolicy: Parallel, selector: {matchLabels: {app: web}}, template: *template}
- apiVersion: apps/v1
  kind: DaemonSet
  metadata: {name: ds}
  spec: {selector: {matchLabels: {app: web}}, template: *template}
- apiVersion: batch/v1
  kind: Job
  metadata: {name: job}
  spec: {template: &once {spec: {restartPolicy: Never, containers: [{name: c, image: example.com/a:1}]}}}
- apiVersion: batch/v1
  kind: CronJob
  metadata: {name: cron}
  spec: {schedule: "*/5 * * * *", timeZone: Europe/Berlin, jobTemplate: {metadata: {labels: {j: k}}, spec: {template: *once}}}
`

func parseWorkloads(t *testing.T, text string) map[string]*workload.Workload {
	t.Helper()
	file, err := Parse([]byte(text), Origin{File: "f", Node: "n"})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*workload.Workload{}
	for _, w := range file.Workloads {
		out[w.String()] = w
	}
	return out
}

func TestWorkloads(t *testing.T) {
	t.Parallel()
	all := parseWorkloads(t, someWorkloads)
	web := all["deployment/default/web"]
	if len(all) != 6 || web == nil || all["statefulset/shop/db"] == nil || !all["statefulset/shop/db"].Rollout.Parallel {
		t.Fatalf("got %v", all)
	}
	if pod := web.Template; pod.Name != "" || pod.Labels["app"] != "web" || pod.Spec.NodeName != "n" || pod.Spec.DNSPolicy == "" {
		t.Errorf("the template is %+v", pod)
	}
	if web.Replicas != 2 || web.Rollout.MaxSurge.String() != "25%" || all["replicationcontroller/default/rc"].Replicas != 1 {
		t.Errorf("the deployment is %+v", web)
	}
	if all["cronjob/default/cron"].JobLabels["j"] != "k" || *all["job/default/job"].Job.Completions != 1 {
		t.Error("the jobs are not what the manifest says")
	}
	scaled := parseWorkloads(t, strings.Replace(someWorkloads, "replicas: 2", "replicas: 3", 1))["deployment/default/web"]
	changed := parseWorkloads(t, strings.Replace(someWorkloads, "a:1", "a:2", 1))["deployment/default/web"]
	ignored := parseWorkloads(t, strings.Replace(someWorkloads, "generation: 2", "generation: 3", 1))["deployment/default/web"]
	if scaled.Revision != web.Revision || scaled.Digest == web.Digest || changed.Revision == web.Revision || changed.Digest == web.Digest || ignored.Digest != web.Digest {
		t.Error("revisions and digests don't follow the content")
	}
}

// TestWorkloadFields checks that each field of the tables exists.
func TestWorkloadFields(t *testing.T) {
	t.Parallel()
	for kind, version := range map[string]string{
		"Deployment": "apps/v1", "ReplicaSet": "apps/v1", "StatefulSet": "apps/v1", "DaemonSet": "apps/v1", "ReplicationController": "v1", "Job": "batch/v1", "CronJob": "batch/v1",
	} {
		table, ok := fields.FindWorkload(version, kind)
		if !ok {
			t.Fatalf("there is no table of %s", kind)
		}
		object, _ := convert.New(workload.Kind(kind))
		exists := map[string]bool{}
		everyField(reflect.TypeOf(object), "", func(pattern string) bool {
			exists[strings.TrimPrefix(pattern, ".")] = true
			return !strings.HasSuffix(pattern, ".template")
		})
		if !exists[table.Template] {
			t.Errorf("%s has no %s", kind, table.Template)
		}
		for _, f := range table.Fields {
			if !exists[f.Path] {
				t.Errorf("%s has no %s", kind, f.Path)
			}
		}
	}
}

// TestFormerWorkloads checks that old versions and generated names are accepted.
func TestFormerWorkloads(t *testing.T) {
	const text = `
apiVersion: extensions/v1beta1
kind: Deployment
metadata: {name: old}
spec: {template: &template {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: example.com/a:1}]}}}
---
apiVersion: apps/v1beta2
kind: StatefulSet
metadata: {name: db}
spec:
  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: example.com/a:1, volumeMounts: [{name: data, mountPath: /data}]}]}}
---
apiVersion: batch/v1
kind: Job
metadata: {generateName: once-}
spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: example.com/a:1}]}}}
`
	first, again := parseWorkloads(t, text), parseWorkloads(t, text)
	var job string
	for name := range first {
		if strings.HasPrefix(name, "job/") {
			job = name
		}
	}
	if len(first) != 3 || first["deployment/default/old"] == nil || !strings.HasPrefix(job, "job/default/once-") || again[job] == nil {
		t.Errorf("%v", first)
	}
	db := first["statefulset/default/db"]
	if len(db.Claims) != 1 || db.Claims[0].Size.String() != "1Gi" || db.Template.Spec.Volumes[0].PersistentVolumeClaim == nil {
		t.Errorf("%+v", db)
	}
	if ordinal, ok := workload.ClaimOrdinal(db, workload.ClaimName(db, "data", 12)); !ok || ordinal != 12 {
		t.Errorf("ordinal %d, %v", ordinal, ok)
	}
	for _, other := range []string{"data-db-x", "data-db-01", "data-dbs-1", "data-db-"} {
		if _, ok := workload.ClaimOrdinal(db, other); ok {
			t.Errorf("%s is a claim of the set", other)
		}
	}
}
