package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/huskd/husk/internal/network/plan"
)

// Sysctl is one that has to change: Name is its path below /proc/sys.
type Sysctl struct {
	Name string
	Was  string
	Want string
}

// ReadSysctl returns the value of a sysctl of the calling thread's namespace.
func ReadSysctl(name string) (string, error) {
	data, err := os.ReadFile(filepath.Join("/proc/sys", name))
	if err != nil {
		return "", fmt.Errorf("sysctl %s: %w", dotted(name), err)
	}
	return strings.TrimSpace(string(data)), nil
}

// dotted returns a sysctl's name as sysctl(8) writes it.
func dotted(name string) string {
	return strings.NewReplacer("/", ".", ".", "/").Replace(name)
}

// Missing returns what has to change in the calling thread's namespace so that
// the named sysctls are 1, in the order in which to do it.
func Missing(names []string) ([]Sysctl, error) {
	var out []Sysctl
	for _, name := range names {
		was, err := ReadSysctl(name)
		if err != nil {
			return nil, err
		}
		if was == "1" {
			continue
		}
		if name == plan.Forward6 {
			keep, err := acceptAdvertisements()
			if err != nil {
				return nil, err
			}
			out = append(out, keep...)
		}
		out = append(out, Sysctl{name, was, "1"})
	}
	return out, nil
}

// acceptAdvertisements returns the changes that let the node go on listening to
// its router. With forwarding on, accept_ra 1 means no, and at the moment that
// it is switched on the kernel drops the routes that were advertised on links
// whose accept_ra isn't 2 (Documentation/networking/ip-sysctl.rst, accept_ra).
func acceptAdvertisements() ([]Sysctl, error) {
	paths, err := filepath.Glob("/proc/sys/net/ipv6/conf/*/accept_ra")
	if err != nil {
		return nil, err
	}
	var out []Sysctl
	for _, path := range paths {
		name := strings.TrimPrefix(path, "/proc/sys/")
		link := filepath.Base(filepath.Dir(path))
		if link == "all" || link == "default" || link == "lo" {
			continue
		}
		was, err := ReadSysctl(name)
		if errors.Is(err, os.ErrNotExist) {
			continue // the link is gone
		}
		if err != nil {
			return nil, err
		}
		if was == "1" {
			out = append(out, Sysctl{name, was, "2"})
		}
	}
	return out, nil
}

// InstancesBeside counts the tables of other instances of Husk on the node:
// those need the same sysctls.
func (d *Datapath) InstancesBeside() (int, error) {
	d.table.mu.Lock()
	defer d.table.mu.Unlock()
	tables, err := d.table.conn.ListTablesOfFamily(d.table.nft.Family)
	if err != nil {
		return 0, d.table.wrap(errors.Join(err, d.table.reopen()))
	}
	n := 0
	for _, t := range tables {
		if strings.HasPrefix(t.Name, "husk-") && t.Name != d.table.nft.Name {
			n++
		}
	}
	return n, nil
}
