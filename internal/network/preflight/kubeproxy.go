package preflight

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
)

// kubeProxyChain is a chain of table nat that kube-proxy has in its modes iptables and ipvs.
const kubeProxyChain = "KUBE-SERVICES"

// KubeProxy returns where kube-proxy has rules, or nothing.
func KubeProxy() (string, error) {
	where, err := kubeProxy()
	if err != nil {
		return "", fmt.Errorf("look for kube-proxy's rules: %w", err)
	}
	return where, nil
}

func kubeProxy() (string, error) {
	c, err := nftables.New()
	if err != nil {
		return "", err
	}
	tables, err := c.ListTables()
	if err != nil {
		return "", err
	}
	for _, t := range tables {
		if t.Name == "kube-proxy" {
			return "nftables table kube-proxy", nil
		}
	}
	chains, err := c.ListChains()
	if err != nil {
		return "", err
	}
	if slices.ContainsFunc(chains, func(c *nftables.Chain) bool { return c.Table.Name == "nat" && c.Name == kubeProxyChain }) {
		return "iptables chain " + kubeProxyChain, nil
	}
	for _, f := range []legacyFamily{legacy4, legacy6} {
		switch has, err := f.hasChain("nat", kubeProxyChain); {
		case err != nil:
			return "", err
		case has:
			return f.command + " chain " + kubeProxyChain, nil
		}
	}
	return "", nil
}
