package servicetable

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
)

// OtherProxy returns where kube-proxy has rules, or nothing.
func OtherProxy() (string, error) {
	c, err := nftables.New()
	if err != nil {
		return "", fmt.Errorf("look for kube-proxy's rules: %w", err)
	}
	tables, err := c.ListTables()
	if err != nil {
		return "", fmt.Errorf("look for kube-proxy's rules: %w", err)
	}
	for _, t := range tables {
		if t.Name == "kube-proxy" {
			return "nftables table kube-proxy", nil
		}
	}
	chains, err := c.ListChains()
	if err != nil {
		return "", fmt.Errorf("look for kube-proxy's rules: %w", err)
	}
	if slices.ContainsFunc(chains, func(c *nftables.Chain) bool { return c.Table.Name == "nat" && c.Name == "KUBE-SERVICES" }) {
		return "iptables chain KUBE-SERVICES", nil
	}
	return "", nil
}
