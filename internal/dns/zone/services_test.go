package zone

import (
	"testing"

	"github.com/huskd/husk/internal/network/service"
)

// TestServices checks the names of a Service with an address, and of one without, of which one
// endpoint isn't ready.
func TestServices(t *testing.T) {
	web := &service.Service{Namespace: "default", Name: "web", ClusterIPs: addresses("10.3.0.1"), Ports: []service.Port{{Name: "http", Protocol: service.TCP, Port: 80}}}
	db := &service.Service{Namespace: "default", Name: "db"}
	alias := &service.Service{Namespace: "default", Name: "alias", ExternalName: "www.example.com"}
	slice := &service.Slice{
		Namespace: "default", Name: "db-1", Service: "db", Ports: []service.EndpointPort{{Name: "sql", Protocol: service.TCP, Port: 5432}},
		Endpoints: []service.Endpoint{
			{Address: addresses("10.201.0.5")[0], Hostname: "db-0", Ready: true},
			{Address: addresses("10.201.0.6")[0], Hostname: "db-1", Serving: true, Terminating: true},
		},
	}
	z := New(Config{Domain: "cluster.local"}, Services(
		map[string]*service.Service{web.Key(): web, db.Key(): db, alias.Key(): alias}, map[string]*service.Slice{slice.Key(): slice}), nil)
	for question, want := range map[string]string{
		"web.default.svc.cluster.local. A":              "A 10.3.0.1",
		"_http._tcp.web.default.svc.cluster.local. SRV": "SRV 0 100 80 web.default.svc.cluster.local. | A 10.3.0.1",
		"db.default.svc.cluster.local. A":               "A 10.201.0.5",
		"_sql._tcp.db.default.svc.cluster.local. SRV":   "SRV 0 100 5432 db-0.db.default.svc.cluster.local. | A 10.201.0.5",
		"db-1.db.default.svc.cluster.local. A":          "nxdomain",
		"alias.default.svc.cluster.local. CNAME":        "CNAME www.example.com.",
	} {
		if got := ask(t, z, question); got != want {
			t.Errorf("%s: %s, want %s", question, got, want)
		}
	}
}
