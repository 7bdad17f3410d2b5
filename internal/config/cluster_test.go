package config

import (
	"io"
	"strings"
	"testing"
)

func TestCluster(t *testing.T) {
	t.Parallel()
	cfg, err := Parse([]string{"--config", "/dev/null", "--kubeconfig", "/etc/k", "--node-labels", "a=b,example.com/c=,topology.kubernetes.io/zone=z,x.node.kubernetes.io/y=", "--node-ip", "2001:db8::1,192.0.2.1", "--node-taints", "k=v:NoSchedule,x:NoExecute"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if labels, err := cfg.Labels(); err != nil || labels["a"] != "b" || len(labels) != 4 {
		t.Errorf("%v %v", labels, err)
	}
	if ips, err := cfg.NodeIPs(); err != nil || len(ips) != 2 || !ips[0].Is6() {
		t.Errorf("%v %v", ips, err)
	}
	if taints, err := cfg.Taints(); err != nil || len(taints) != 2 || taints[0].Value != "v" || taints[1].Effect != "NoExecute" {
		t.Errorf("%v %v", taints, err)
	}
	if _, err := Parse([]string{"--config", "/dev/null", "--network-kubeconfig", "/etc/k", "--network-only", "--network-store", "kubernetes"}, io.Discard); err != nil {
		t.Error(err)
	}
	for flag, want := range map[string]string{
		"--kubeconfig=k":      "kubeconfig: \"k\" is not an absolute path",
		"--kubelet-dir=k":     "kubelet-dir: \"k\" is not an absolute path",
		"--node-name=UPPER":   "node-name: ",
		"--node-labels=a":     "node-labels: ",
		"--node-labels=a=b c": "node-labels: ",
		"--node-labels=node-role.kubernetes.io/worker=":     "node-labels: node-role.kubernetes.io/worker: a node may not set this label itself",
		"--node-labels=k8s.io/x=":                           "node-labels: k8s.io/x: a node may not",
		"--node-ip=x":                                       "node-ip: \"x\" is not an IP address",
		"--node-ip=127.0.0.1":                               "node-ip: 127.0.0.1 can't be reached",
		"--node-ip=192.0.2.1,192.0.2.2":                     "node-ip: give at most one",
		"--node-ip=192.0.2.1,::":                            "node-ip: :: stands for all",
		"--bootstrap-kubeconfig=/etc/b":                     "bootstrap-kubeconfig: \"/etc/b\" must be an absolute path, and kubeconfig",
		"--node-taints=a=b":                                 "node-taints: ",
		"--node-taints=a:Never":                             "node-taints: ",
		"--node-listen=10250":                               "node-listen: ",
		"--node-healthz-listen=10248":                       "node-healthz-listen: ",
		"--node-tls-cert-file=/x":                           "node-tls-cert-file: set both it and node-tls-private-key-file",
		"--node-client-ca-file=ca.crt":                      "node-client-ca-file: ",
		"--cluster-dns=dns.example.com":                     "cluster-dns: ",
		"--cluster-domain=a b":                              "cluster-domain: ",
		"--allowed-unsafe-sysctls=net.core.*,vm.swappiness": "allowed-unsafe-sysctls: \"vm.swappiness\" doesn't belong",
	} {
		if _, err := Parse([]string{"--config", "/dev/null", flag}, io.Discard); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}
