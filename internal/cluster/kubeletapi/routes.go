package kubeletapi

import (
	"net/http"
	"strings"

	"github.com/huskd/husk/internal/stream"
)

// route is a group of paths with one handler.
type route struct {
	// methods and paths are separated by spaces. Paths are patterns of http.ServeMux.
	methods, paths string
	// access holds the subresources of nodes, separated by spaces. Permission for one of them is
	// enough. They are the kubelet's, with its fine-grained authorization.
	access string
	// verb is the verb of authorization; that of the method if it is empty.
	verb    string
	handler http.HandlerFunc
}

// routes returns everything that the server serves.
func (s *Server) routes() []route {
	session := func(kind string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { s.session(w, r, kind) }
	}
	return []route{
		{methods: "GET", paths: "/healthz /healthz/{check}", access: "healthz proxy", handler: s.health.serve},
		{methods: "GET", paths: "/pods", access: "pods proxy", handler: s.listPods},
		{methods: "GET", paths: "/runningpods /runningpods/{$}", access: "pods proxy", handler: s.listRunning},
		{methods: "GET", paths: "/configz", access: "configz proxy", handler: s.configz},
		{methods: "GET", paths: "/flagz", access: "configz", handler: s.flagz},
		{methods: "GET", paths: "/statusz", access: "statusz", handler: s.statusz},

		{methods: "GET", paths: "/stats/summary", access: "stats", handler: s.Usage.Summary},
		{methods: "GET", paths: "/metrics", access: "metrics", handler: s.Usage.Metrics},
		{methods: "GET", paths: "/metrics/cadvisor", access: "metrics", handler: s.Usage.Cadvisor},
		{methods: "GET", paths: "/metrics/probes", access: "metrics", handler: s.Usage.Probes},
		{methods: "GET", paths: "/metrics/resource", access: "metrics", handler: s.Usage.Resource},
		{methods: "GET", paths: "/metrics/slis", access: "metrics", handler: s.health.serveSLIs},

		{methods: "GET", paths: "/logs /logs/{file...}", access: "log", handler: s.serveFile},
		{methods: "GET", paths: "/containerLogs/{namespace}/{pod}/{container}", access: "proxy", handler: s.logs},
		{methods: "GET POST", paths: "/exec/{namespace}/{pod}/{container} /exec/{namespace}/{pod}/{uid}/{container}", access: "proxy", verb: "create", handler: session(stream.Exec)},
		{methods: "GET POST", paths: "/attach/{namespace}/{pod}/{container} /attach/{namespace}/{pod}/{uid}/{container}", access: "proxy", verb: "create", handler: session(stream.Attach)},
		{methods: "GET POST", paths: "/portForward/{namespace}/{pod} /portForward/{namespace}/{pod}/{uid}", access: "proxy", verb: "create", handler: s.forward},
		{methods: "POST", paths: "/checkpoint/{namespace}/{pod}/{container}", access: "checkpoint", handler: s.checkpoint},

		{methods: "GET POST", paths: "/debug/pprof/ /debug/pprof/{profile}", access: "proxy", handler: s.profile},
		{methods: "PUT", paths: "/debug/flags/v", access: "proxy", handler: s.setVerbosity},

		// A client without permission doesn't learn which paths exist.
		{methods: "", paths: "/", access: "proxy", handler: http.NotFound},
	}
}

// handler returns a handler that authorizes requests and passes them to their route.
func (s *Server) handler(routes []route) http.Handler {
	mux := http.NewServeMux()
	for _, r := range routes {
		handler := s.auth.protect(strings.Fields(r.access), r.verb, r.handler)
		for _, path := range strings.Fields(r.paths) {
			for _, method := range strings.Split(r.methods, " ") {
				mux.Handle(strings.TrimSpace(method+" "+path), handler)
			}
		}
	}
	return mux
}
