package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/huskd/husk/internal/netns"
)

// The kinds of things that are counted.
const (
	processes = iota
	namespaces
	links
	routes
	tables
	mounts
	cgroups
	files
	kinds
)

// tally holds the counts of what belongs to the demo.
type tally [kinds]int

var kindNames = [kinds]string{
	processes: "processes", namespaces: "network namespaces", links: "links", routes: "addresses and routes",
	tables: "nftables tables", mounts: "mounts", cgroups: "cgroups", files: "files and directories",
}

// count counts everything on this machine that carries the demo's names.
func (d *demo) count() tally {
	pinned, _ := filepath.Glob(filepath.Join(netns.Dir, d.instance().NetnsPrefix()+"*"))
	return tally{
		processes: d.processes(), namespaces: len(pinned), links: d.links(), routes: d.routes(),
		tables: d.tables(), mounts: d.mounts(), cgroups: d.cgroups(), files: entries(d.dir) - 1,
	}
}

// processes counts those with the demo's directory in their arguments or in its cgroups.
func (d *demo) processes() (n int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		cgroup, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		if strings.Contains(string(args), d.dir) || strings.Contains(string(cgroup), ":"+d.instance().Cgroup()+"/") {
			n++
		}
	}
	return n
}

func (d *demo) links() (n int) {
	links, _ := netlink.LinkList()
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, d.instance().HostLinkPrefix()) {
			n++
		}
	}
	return n
}

// routes counts routes into the demo's subnets, including those of addresses.
func (d *demo) routes() (n int) {
	routes, _ := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		to, _ := netip.AddrFromSlice(r.Dst.IP)
		for _, s := range d.subnets {
			if netip.MustParsePrefix(s).Contains(to.Unmap()) {
				n++
			}
		}
	}
	return n
}

func (d *demo) tables() (n int) {
	conn, err := nftables.New()
	if err != nil {
		return 0
	}
	tables, _ := conn.ListTables()
	for _, t := range tables {
		if t.Name == d.instance().Table() {
			n++
		}
	}
	return n
}

func (d *demo) mounts() (n int) {
	table, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(table)) {
		at := strings.Fields(line)[4]
		if strings.HasPrefix(at, d.dir+"/") || strings.HasPrefix(filepath.Base(at), d.instance().NetnsPrefix()) {
			n++
		}
	}
	return n
}

func (d *demo) cgroups() (n int) {
	trees, _ := filepath.Glob("/sys/fs/cgroup/*" + d.instance().Cgroup())
	for _, tree := range append(trees, "/sys/fs/cgroup"+d.instance().Cgroup()) {
		_ = filepath.WalkDir(tree, func(_ string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				n++
			}
			return nil
		})
	}
	return n
}

// entries counts a directory and everything below it, except below mount points.
func entries(dir string) (n int) {
	top, err := os.Stat(dir)
	if err != nil {
		return 1
	}
	device := top.Sys().(*syscall.Stat_t).Dev
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if info, err := e.Info(); err == nil && e.IsDir() && info.Sys().(*syscall.Stat_t).Dev != device {
			return fs.SkipDir
		}
		n++
		return nil
	})
	return n
}

// end stops everything, removes the demo's directory, and shows the counts from before, while the
// pod ran (if it did) and now.
func (d *demo) end(before, running tally) error {
	title("stop everything and check that nothing is left")
	err := d.stop()
	after := d.count()
	if after[processes] == 0 && after[mounts] == 0 {
		err = errors.Join(err, os.RemoveAll(d.dir))
		after = d.count()
	} else {
		err = errors.Join(err, fmt.Errorf("%s is kept: it is still in use", d.dir))
	}
	say("")
	say("%-22s %7s %9s %6s", "of the demo's own", "before", "meanwhile", "after")
	for i, kind := range kindNames {
		say("%-22s %7d %9d %6d", kind, before[i], running[i], after[i])
		if after[i] > before[i] {
			err = errors.Join(err, fmt.Errorf("left behind: %d %s", after[i]-before[i], kind))
		}
	}
	return err
}

// stop stops the pods and huskd: with husk shutdown, or else by signals.
func (d *demo) stop() error {
	if d.huskd == nil || d.huskd.Process == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if d.husk(ctx, "shutdown", "--budget", "5s") != nil {
		// It doesn't serve yet, or no longer.
		_ = d.huskd.Process.Signal(syscall.SIGTERM)
	}
	select {
	case <-d.ended:
		return nil
	case <-time.After(timeout):
	}
	_ = d.huskd.Process.Kill()
	<-d.ended
	return errors.New("huskd did not exit and was killed")
}

// freeSubnets returns pod subnets that overlap no route of this machine.
func freeSubnets() ([]string, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("routes: %w", err)
	}
	taken := func(p netip.Prefix) bool {
		for _, r := range routes {
			if r.Dst == nil {
				continue
			}
			addr, _ := netip.AddrFromSlice(r.Dst.IP)
			bits, _ := r.Dst.Mask.Size()
			if to := netip.PrefixFrom(addr.Unmap(), bits); bits > 0 && to.Overlaps(p) {
				return true
			}
		}
		return false
	}
	for i := range 256 {
		four := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 202, byte(i), 0}), 24)
		six := netip.MustParsePrefix(fmt.Sprintf("fd68:7573:6b01:%x::/64", i))
		if !taken(four) && !taken(six) {
			return []string{four.String(), six.String()}, nil
		}
	}
	return nil, errors.New("this machine has no free subnet in 10.202.0.0/16")
}
