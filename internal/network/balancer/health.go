package balancer

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/huskd/husk/internal/network/service"
)

// healthChecks answers the health checks of load balancers: each Service with a HealthCheckPort has
// a server there, which says whether this node has endpoints of it.
type healthChecks struct {
	log *slog.Logger

	mu       sync.Mutex // Invariant: guards what follows.
	node     string
	services map[string]*service.Service // those with a port
	slices   map[string]*service.Slice
	servers  map[string]*healthServer
	closed   bool
}

type healthServer struct {
	port   uint16
	server *http.Server
}

func newHealthChecks(log *slog.Logger) healthChecks {
	return healthChecks{log: log, services: map[string]*service.Service{}, slices: map[string]*service.Slice{}, servers: map[string]*healthServer{}}
}

func (h *healthChecks) change(c service.Changes) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.Node != nil {
		h.node = c.Node.Name
	}
	for key, s := range c.Slices {
		if h.slices[key] = s; s == nil {
			delete(h.slices, key)
		}
	}
	for key, s := range c.Services {
		port := uint16(0)
		if s != nil {
			port = s.HealthCheckPort
		}
		if h.services[key] = s; port == 0 {
			delete(h.services, key)
		}
		if old := h.servers[key]; old != nil && old.port != port {
			_ = old.server.Close()
			delete(h.servers, key)
		}
		if port != 0 && h.servers[key] == nil && !h.closed {
			h.serve(key, port)
		}
	}
}

// serve starts the server of a Service.
func (h *healthChecks) serve(key string, port uint16) {
	listener, err := net.Listen("tcp", ":"+strconv.Itoa(int(port)))
	if err != nil {
		h.log.Error("services: the health check of a Service has no answer", "service", key, "error", err)
		return
	}
	const timeout = 10 * time.Second
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { h.answer(w, key) }), ReadHeaderTimeout: timeout, WriteTimeout: timeout}
	h.servers[key] = &healthServer{port, server}
	go func() { _ = server.Serve(listener) }()
}

// health is the body of an answer, as load balancers know it from kube-proxy.
type health struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints int  `json:"localEndpoints"`
	Healthy        bool `json:"serviceProxyHealthy"`
}

func (h *healthChecks) answer(w http.ResponseWriter, key string) {
	h.mu.Lock()
	s := h.services[key]
	local := map[netip.Addr]bool{}
	for _, slice := range h.slices {
		if slice.Namespace+"/"+slice.Service != key {
			continue
		}
		for i := range slice.Endpoints {
			if e := &slice.Endpoints[i]; e.Ready && e.Node == h.node {
				local[e.Address] = true
			}
		}
	}
	h.mu.Unlock()
	if s == nil {
		http.Error(w, fmt.Sprintf("Service %s is gone", key), http.StatusNotFound)
		return
	}
	body := health{LocalEndpoints: len(local), Healthy: true}
	body.Service.Namespace, body.Service.Name = s.Namespace, s.Name
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(len(local)))
	if len(local) == 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(body)
}

func (h *healthChecks) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for key, s := range h.servers {
		_ = s.server.Close()
		delete(h.servers, key)
	}
}
