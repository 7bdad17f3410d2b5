package zone

import (
	"net/netip"

	"github.com/huskd/husk/internal/network/service"
)

// Services returns what names depend on, of Services and the slices of their endpoints.
func Services(services map[string]*service.Service, slices map[string]*service.Slice) (out []Service) {
	endpoints := map[string][]Endpoint{} // by the key of the Service
	for _, slice := range slices {
		var ports []Port
		for _, p := range slice.Ports {
			ports = append(ports, Port{p.Name, p.Protocol.String(), p.Port})
		}
		key := slice.Namespace + "/" + slice.Service
		for _, e := range slice.Endpoints {
			if e.Ready {
				endpoints[key] = append(endpoints[key], Endpoint{e.Hostname, []netip.Addr{e.Address}, ports})
			}
		}
	}
	for key, s := range services {
		named := Service{Namespace: s.Namespace, Name: s.Name, Addresses: s.ClusterIPs, ExternalName: s.ExternalName, Endpoints: endpoints[key]}
		for _, p := range s.Ports {
			named.Ports = append(named.Ports, Port{p.Name, p.Protocol.String(), p.Port})
		}
		out = append(out, named)
	}
	return out
}
