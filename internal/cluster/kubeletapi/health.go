package kubeletapi

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// check is a part of the health of huskd. Its name is the kubelet's.
type check struct {
	name string
	run  func() error
}

// health serves the checks, and counts their results.
type health struct {
	checks []check
	slis   http.Handler
	last   *prometheus.GaugeVec
	total  *prometheus.CounterVec
}

// newHealth returns the checks of huskd. respond returns once the agent's locks are free. logs
// returns an error if huskd's log is blocked.
func newHealth(respond func(), logs func() error) *health {
	h := &health{
		checks: []check{
			{"ping", func() error { return nil }},
			{"log", logs},
			{"syncloop", func() error {
				respond()
				return nil
			}},
		},
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubernetes_healthcheck", Help: "Result of a health check: 1 if it passed, 0 if it failed.",
		}, []string{"name", "type"}),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubernetes_healthchecks_total", Help: "Results of health checks.",
		}, []string{"name", "status", "type"}),
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(h.last, h.total)
	h.slis = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	return h
}

// serveSLIs serves the results of the checks so far.
func (h *health) serveSLIs(w http.ResponseWriter, r *http.Request) { h.slis.ServeHTTP(w, r) }

// serve runs the check in the request's path, or all of them, and answers as the kubelet does. The
// reason of a failure isn't shown, because the health may be readable by everyone.
func (h *health) serve(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("check")
	var report strings.Builder
	found, failed := false, false
	for _, c := range h.checks {
		if name != "" && c.name != name {
			continue
		}
		found = true
		err := c.run()
		passed, status := 1.0, "success"
		if err != nil {
			failed, passed, status = true, 0, "error"
			fmt.Fprintf(&report, "[-]%s failed: reason withheld\n", c.name)
		} else {
			fmt.Fprintf(&report, "[+]%s ok\n", c.name)
		}
		h.last.WithLabelValues(c.name, "healthz").Set(passed)
		h.total.WithLabelValues(c.name, status, "healthz").Inc()
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch {
	case !found:
		http.NotFound(w, r)
	case failed:
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprintf(w, "%shealthz check failed\n", report.String())
	case r.URL.Query().Has("verbose"):
		fmt.Fprintf(w, "%shealthz check passed\n", report.String())
	default:
		fmt.Fprint(w, "ok")
	}
}

// handler serves only the health, to everyone.
func (h *health) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", h.serve)
	mux.HandleFunc("GET /healthz/{check}", h.serve)
	return mux
}
