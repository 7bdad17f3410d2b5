package manifest

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/intstr"
)

const serviceFile = `apiVersion: v1
kind: Service
metadata: {name: web, uid: a-b, resourceVersion: "7"}
spec:
  type: NodePort
  selector: {app: web}
  ports:
  - {port: 80, targetPort: http}
status: {loadBalancer: {ingress: [{ip: 192.0.2.1}]}}
---
apiVersion: v1
kind: Endpoints
metadata: {name: db}
subsets: [{addresses: [{ip: 192.0.2.1}], ports: [{port: 5432}]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-x, labels: {kubernetes.io/service-name: db}}
addressType: IPv4
endpoints: [{addresses: [192.0.2.2]}]
ports: [{port: 5432}]
`

func TestServices(t *testing.T) {
	o := origin("s.yaml")
	f, err := Parse([]byte(serviceFile), o)
	if err != nil || len(f.Unused) != 3 || len(f.Services)+len(f.Slices) > 0 {
		t.Errorf("where Services are not served: %+v, %v", f, err)
	}
	o.Services = true
	f, err = Parse([]byte(serviceFile), o)
	if err != nil || len(f.Services) != 1 || len(f.Slices) != 2 || len(f.Unused) > 0 {
		t.Fatalf("%+v, %v", f, err)
	}
	s := f.Services[0]
	if s.Namespace != "default" || s.UID != "" || len(s.Status.LoadBalancer.Ingress) > 0 || s.Spec.Ports[0].TargetPort != intstr.FromString("http") || s.Spec.Ports[0].Protocol != "TCP" {
		t.Errorf("%+v", s)
	}
	for i, want := range []string{"default/db-0-ipv4 of db", "default/db-x of db"} {
		if got := f.Slices[i].Key() + " of " + f.Slices[i].Service; got != want || len(f.Slices[i].Endpoints) != 1 {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestBadServices(t *testing.T) {
	o := origin("s.yaml")
	o.Services = true
	for name, c := range map[string]struct{ from, to, want string }{
		"unknown field":   {"  selector:", "  selectors:", "s.yaml:6: Service default/web: spec.selectors: unknown field"},
		"a mistake":       {"{port: 80,", "{port: 80, nodePort: 80,", "s.yaml:8: Service default/web: spec.ports[0].nodePort: 80 is not within 30000…32767"},
		"a bad address":   {"  type: NodePort", "  clusterIP: ten", `s.yaml:5: Service default/web: spec.clusterIP: "ten" is not an IP address`},
		"the wrong type":  {"{port: 80,", "{port: eighty,", "s.yaml:8: Service default/web: spec.ports[0].port: "},
		"no name":         {"{name: web, ", "{", "s.yaml:3: document 1: metadata.name: missing"},
		"a long name":     {"{name: web,", "{name: web.web,", `s.yaml:3: Service default/web.web: metadata.name: "web.web" can't be the name of a Service`},
		"of no Service":   {"labels: {kubernetes.io/service-name: db}", "labels: {}", "s.yaml:18: EndpointSlice default/db-x: metadata.labels: missing: the label kubernetes.io/service-name names the Service"},
		"another's name":  {"kind: Endpoints\nmetadata: {name: db}\nsubsets: [{addresses: [{ip: 192.0.2.1}], ports: [{port: 5432}]}]", "kind: Service\nmetadata: {name: web}\nspec: {clusterIP: None}", "s.yaml:11: Service default/web: metadata.name: line 1 declares a service of the same name: rename one"},
		"endpoints' port": {"ports: [{port: 5432}]}]", "ports: [{port: 0}]}]", "s.yaml:14: Endpoints default/db: subsets[0].ports[0].port: 0 is not a port: use 1 to 65535"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(strings.Replace(serviceFile, c.from, c.to, 1)), o)
			if err == nil || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}
