package daemon

import (
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/huskd/husk/internal/config"
)

// logKubelet logs what kubelet-config has become: one line for the whole, and one for each field
// that huskd can't follow.
func logKubelet(cfg config.Config, log *slog.Logger) {
	t := cfg.Translation
	if t == nil {
		return
	}
	log.Info("the configuration of the kubelet is used", "files", strings.Join(t.Files, " "), "keys", strings.Join(slices.Sorted(maps.Keys(t.Values)), " "), "overridden", strings.Join(cfg.Overridden, " "))
	for _, n := range t.Missing {
		log.Warn("huskd doesn't have what the configuration of the kubelet asks for", "field", n.Field, "value", n.Value, "at", n.At, "why", n.Text)
	}
}

// kubeletConfiguration returns the configuration in the fields of a KubeletConfiguration,
// kubelet.config.k8s.io/v1beta1. It has only those that huskd has.
func kubeletConfiguration(cfg config.Config) map[string]any {
	taints, _ := cfg.Taints() // config has checked them
	podPids := cfg.PodPidsLimit
	if podPids == 0 {
		podPids = -1
	}
	out := map[string]any{
		"enableServer":                true,
		"enableDebuggingHandlers":     true,
		"enableDebugFlagsHandler":     true,
		"enableProfilingHandler":      true,
		"enableSystemLogHandler":      true,
		"enableSystemLogQuery":        false,
		"staticPodPath":               cfg.Manifests,
		"staticPodURL":                cfg.Web,
		"httpCheckFrequency":          (time.Duration(cfg.WebSeconds) * time.Second).String(),
		"tlsCertFile":                 cfg.NodeTLSCert,
		"tlsPrivateKeyFile":           cfg.NodeTLSKey,
		"authentication":              map[string]any{"x509": map[string]any{"clientCAFile": cfg.NodeClientCA}, "webhook": map[string]any{"enabled": true}, "anonymous": map[string]any{"enabled": false}},
		"authorization":               map[string]any{"mode": "Webhook"},
		"tlsMinVersion":               cfg.NodeTLSMin,
		"tlsCipherSuites":             cfg.NodeTLSSuites,
		"serverTLSBootstrap":          cfg.NodeTLSCSR,
		"registerNode":                true,
		"registerWithTaints":          taints,
		"clusterDNS":                  cfg.ClusterDNS,
		"clusterDomain":               cfg.ClusterDomain,
		"cgroupDriver":                cfg.CgroupDriver,
		"cgroupsPerQOS":               true,
		"resolvConf":                  cfg.ResolvConf,
		"maxPods":                     cfg.MaxPods,
		"kubeReserved":                cfg.KubeReserved,
		"systemReserved":              cfg.SystemReserved,
		"evictionHard":                cfg.EvictionHard,
		"evictionSoft":                cfg.EvictionSoft,
		"evictionSoftGracePeriod":     cfg.EvictionGrace,
		"evictionMinimumReclaim":      cfg.MinReclaim,
		"seccompDefault":              cfg.SeccompDefault,
		"podPidsLimit":                podPids,
		"imageGCHighThresholdPercent": cfg.ImageHigh,
		"imageGCLowThresholdPercent":  cfg.ImageLow,
		"imageMinimumGCAge":           (time.Duration(cfg.ImageAge) * time.Second).String(),
		"containerLogMaxSize":         fmt.Sprintf("%dMi", cfg.LogMaxSize),
		"containerLogMaxFiles":        cfg.LogMaxFiles,
		"containerRuntimeEndpoint":    cfg.Listen,
	}
	total, critical := cfg.Periods()
	out["shutdownGracePeriod"], out["shutdownGracePeriodCriticalPods"] = total.String(), critical.String()
	endpoint := func(address, host, port string) {
		if h, p, err := net.SplitHostPort(address); err == nil {
			n, _ := strconv.ParseUint(p, 10, 16)
			out[host], out[port] = h, n
		}
	}
	endpoint(cfg.NodeListen, "address", "port")
	endpoint(cfg.NodeHealthz, "healthzBindAddress", "healthzPort")
	return out
}
