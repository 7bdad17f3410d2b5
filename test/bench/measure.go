package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/huskd/husk/internal/bench/report"
)

// series is one call of husk bench, with the name of its report.
type series struct {
	name string
	args []string
}

// measure starts the runtimes, measures them, and prints and writes the results. It runs on the
// machine.
func measure() (err error) {
	p, err := planned()
	if err != nil {
		return err
	}
	ctx := context.Background()
	var daemons []*daemon
	defer func() {
		for _, d := range daemons {
			if err != nil {
				err = fmt.Errorf("%w\n%s's log:\n%s", err, d.name, d.tail())
			}
			d.end()
		}
	}()
	for _, begin := range []func() (*daemon, error){
		func() (*daemon, error) { return startContainerd(ctx, p) },
		func() (*daemon, error) { return startHuskd(ctx, p, instances[0], "crun", 201) },
		func() (*daemon, error) { return startHuskd(ctx, p, instances[1], "runc", 202) },
	} {
		d, err := begin()
		if d != nil {
			daemons = append(daemons, d)
		}
		if err != nil {
			return err
		}
	}
	all, err := p.measureAll(ctx, daemons)
	if err != nil {
		return err
	}
	if all.hostLocal, err = hostLocal(ctx, p); err != nil {
		return err
	}
	if all.plugins, err = plugins(ctx, p); err != nil {
		return err
	}
	if all.services, err = services(ctx, p); err != nil {
		return err
	}
	lines := rows(all)
	fmt.Print("\n" + plain(lines))
	return writePage(p.Page, document(all, lines, describe()))
}

func (p plan) measureAll(ctx context.Context, daemons []*daemon) (f findings, err error) {
	var endpoints, restarts []string
	for _, d := range daemons {
		endpoints = append(endpoints, "--endpoint", d.name+"="+d.socket)
		restarts = append(restarts, "--restart", d.restart())
	}
	one, many := strconv.Itoa(p.Rounds), strconv.Itoa(p.Batch)
	f.reports = map[string]report.Report{}
	for _, s := range []series{
		{"one", append([]string{"pods", "shared", "containers", "exec", "agent", "net", "ipam", "-n", one}, endpoints...)},
		{"batch", append([]string{"pods", "-n", many, "--parallel", strconv.Itoa(atATime)}, endpoints...)},
		{"many", append([]string{"list", "-n", one, "--pods", many}, endpoints...)},
		{"crowd", append([]string{"agent", "-n", many, "--parallel", many}, endpoints...)},
		{"restart", append(append([]string{"restart", "-n", "5", "--pods", many}, endpoints...), restarts...)},
	} {
		r, err := p.bench(ctx, s)
		if err != nil {
			return f, fmt.Errorf("husk bench %s: %w", strings.Join(s.args, " "), err)
		}
		f.reports[s.name] = r
	}
	return f, nil
}

// atATime is the number of pods created at a time.
const atATime = 10

// bench runs husk bench and reads its report.
func (p plan) bench(ctx context.Context, s series) (r report.Report, err error) {
	args := append([]string{"bench", "-o", "json", "--image", webImage, "--html", filepath.Join(p.Out, s.name+".html")}, s.args...)
	cmd := exec.CommandContext(ctx, filepath.Join(p.Bin, "husk"), args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if len(out) == 0 {
		return r, errors.Join(err, errors.New("no report"))
	}
	if err := os.WriteFile(filepath.Join(p.Out, s.name+".json"), out, 0o644); err != nil {
		return r, err
	}
	return r, errors.Join(err, json.Unmarshal(out, &r))
}

// hostLocalFill is the number of addresses leased beforehand.
const hostLocalFill = 20_000

// hostLocalTimes are the medians of ADD in milliseconds, without leases and with many.
type hostLocalTimes struct{ empty, full float64 }

// hostLocal measures the reference plugin that bridge uses for addresses.
func hostLocal(ctx context.Context, p plan) (t hostLocalTimes, err error) {
	dir := filepath.Join(p.Dir, "host-local")
	net := filepath.Join(dir, "pods")
	if err := os.MkdirAll(net, 0o755); err != nil {
		return t, err
	}
	if t.empty, err = addTime(ctx, dir, p.Rounds); err != nil {
		return t, err
	}
	for i := range hostLocalFill { // in the format of the plugin
		name := fmt.Sprintf("10.0.%d.%d", 1+i/250, 1+i%250)
		if err := os.WriteFile(filepath.Join(net, name), fmt.Appendf(nil, "filler-%d\r\neth0", i), 0o644); err != nil {
			return t, err
		}
	}
	if err := os.WriteFile(filepath.Join(net, "last_reserved_ip.0"), []byte("10.0.80.250"), 0o644); err != nil {
		return t, err
	}
	t.full, err = addTime(ctx, dir, p.Rounds)
	return t, err
}

// addTime returns the median of n calls of ADD.
func addTime(ctx context.Context, dir string, n int) (float64, error) {
	conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "pods", "type": "bridge", "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.0.0.0/16"}]]}}`, dir)
	call := func(verb string, i int) (time.Duration, error) {
		cmd := exec.CommandContext(ctx, "/usr/lib/cni/host-local")
		cmd.Stdin = strings.NewReader(conf)
		cmd.Env = []string{"CNI_COMMAND=" + verb, fmt.Sprintf("CNI_CONTAINERID=bench-%d", i), "CNI_NETNS=/proc/self/ns/net", "CNI_IFNAME=eth0", "CNI_PATH=/usr/lib/cni"}
		began := time.Now()
		out, err := cmd.CombinedOutput()
		if err != nil {
			return 0, fmt.Errorf("host-local %s: %w: %s", verb, err, out)
		}
		return time.Since(began), nil
	}
	var all []time.Duration
	for i := range n {
		took, err := call("ADD", i)
		if err != nil {
			return 0, err
		}
		all = append(all, took)
		if _, err := call("DEL", i); err != nil {
			return 0, err
		}
	}
	return report.Summarise("ADD", all, 0, 0).P50, nil
}
