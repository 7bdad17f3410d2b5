package config

import (
	"fmt"
	"io"
	"strings"
	"testing"
)

func TestBGPPeers(t *testing.T) {
	for peer, want := range map[string]string{
		"192.0.2.254=65000":          "[{192.0.2.254 65000 false false}]",
		"2001:db8::1=4200000000/bfd": "[{2001:db8::1 4200000000 true false}]",
		"192.0.2.254=65000/gtsm":     "[{192.0.2.254 65000 false true}]",
		"192.0.2.254=65000/bfd/gtsm": "[{192.0.2.254 65000 true true}]",
		"192.0.2.254=65000/gtsm/bfd": "",
		"192.0.2.254":                "",
		"192.0.2.254=0":              "",
		"192.0.2.254=65000/BFD":      "",
		"192.0.2.254/bfd=65000":      "",
		"fe80::1%eth0=65000":         "",
	} {
		b := BGP{Peers: []string{peer}}
		got, err := b.BGPPeers()
		if (err == nil) != (want != "") || err == nil && fmt.Sprint(got) != want {
			t.Errorf("%s: got %v, %v, want %s", peer, got, err, want)
		}
	}
}

func TestNetworkKubeconfig(t *testing.T) {
	for flags, want := range map[string]string{
		"--network-kubeconfig=/k":                                                          "",
		"--network-kubeconfig=/k --network-only":                                           "",
		"--network-kubeconfig=/k --manifests=/m":                                           "",
		"--network-kubeconfig=/k --network-store=kubernetes":                               "",
		"--network-kubeconfig=/k --network-store=kubernetes --network-policy=off":          "",
		"--network-kubeconfig=/k --network-store=kubernetes --network-only":                "",
		"--kubeconfig=/k --network-store=kubernetes":                                       "",
		"--network-store=kubernetes":                                                       "network-store: kubernetes needs kubeconfig or, beside a kubelet, network-kubeconfig",
		"--network-store=kubernetes --network-only":                                        "network-store: kubernetes needs network-kubeconfig",
		"--network-kubeconfig=k":                                                           `network-kubeconfig: "k" is not an absolute path`,
		"--network-kubeconfig=/k --kubeconfig=/k":                                          "network-kubeconfig: the network of a node uses kubeconfig: leave one of them out",
		"--network-kubeconfig=/k --network-policy=off":                                     "network-kubeconfig: nothing uses it with network-policy off or network-mode bridge: leave it out",
		"--network-kubeconfig=/k --network-mode=bridge":                                    "network-kubeconfig: nothing uses it with network-policy off or network-mode bridge: leave it out",
		"--kubeconfig=/k --network-only":                                                   "kubeconfig: with network-only this machine is no node by huskd: use network-kubeconfig",
		"--kubeconfig=/k --network-kubeconfig=/k --network-only":                           "kubeconfig: with network-only this machine is no node by huskd: use network-kubeconfig",
		"--network-kubeconfig=/k --network-only --network-store=kubernetes --manifests=/m": "manifests: huskd runs no pods with network-only: leave it out",
	} {
		_, err := Parse(append([]string{"--config", "/dev/null"}, strings.Fields(flags)...), io.Discard)
		if got := fmt.Sprint(err); err == nil && want != "" || err != nil && got != want {
			t.Errorf("%s: %v, want %s", flags, err, want)
		}
	}
}

func TestEtcdEndpoints(t *testing.T) {
	for endpoints, want := range map[string]string{
		"https://192.0.2.1:2379": "",
		"http://127.0.0.1:2379,http://localhost:2379,http://[::1]:2379": "",
		"http://192.0.2.1:2379":                           "etcd-endpoints: http://192.0.2.1:2379 is not encrypted",
		"http://localhost:2379,http://[2001:db8::1]:2379": "etcd-endpoints: http://[2001:db8::1]:2379 is not encrypted",
		"http://localhost.example.com:2379":               "is not encrypted",
		"http://192.0.2.1:2379 --etcd-insecure":           "",
		"http://127.0.0.1:2379 --network-store=none":      "etcd-endpoints: set it and network-store etcd or flannel",
	} {
		_, err := Parse(append([]string{"--config", "/dev/null", "--network-store=etcd"}, strings.Fields("--etcd-endpoints="+endpoints)...), io.Discard)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", endpoints, err, want)
		}
	}
}
