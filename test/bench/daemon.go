package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// daemon is a runtime on the machine. It is restarted whenever it exits.
type daemon struct {
	name, socket string
	args         []string
	pidFile      string
	log          *os.File
	stop         context.CancelFunc
	ended        sync.WaitGroup
}

// start starts a daemon and waits until it listens.
func start(ctx context.Context, dir, name, socket string, args ...string) (*daemon, error) {
	log, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	d := &daemon{name: name, socket: socket, args: args, pidFile: filepath.Join(dir, name+".pid"), log: log, stop: cancel}
	d.ended.Go(func() {
		for ctx.Err() == nil {
			if err := d.run(ctx); err != nil && ctx.Err() == nil {
				_, _ = fmt.Fprintln(log, "exited:", err)
			}
		}
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if conn, err := net.Dial("unix", socket); err == nil {
			return d, conn.Close()
		}
		if time.Now().After(deadline) {
			d.end()
			return nil, fmt.Errorf("%s does not listen:\n%s", name, d.tail())
		}
	}
}

// run runs the daemon until it exits.
func (d *daemon) run(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, d.args[0], d.args[1:]...)
	cmd.Stdout, cmd.Stderr = d.log, d.log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := os.WriteFile(d.pidFile, []byte(strconv.Itoa(cmd.Process.Pid)), 0o644); err != nil {
		return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	return cmd.Wait()
}

// restart returns the command that kills the daemon, which restarts it.
func (d *daemon) restart() string { return "pkill -KILL -F " + d.pidFile }

func (d *daemon) end() {
	d.stop()
	d.ended.Wait()
	_ = d.log.Close()
}

// tail returns the end of its log.
func (d *daemon) tail() []byte {
	data, _ := os.ReadFile(d.log.Name())
	if i := len(data) - 4000; i > 0 {
		data = data[i:]
	}
	return bytes.TrimSpace(data)
}

// containerdConfig is containerd's default configuration except for its directories and for
// features that this machine lacks: a lower oom_score_adj, AppArmor, a registry with the pause
// image.
const containerdConfig = `version = 3
root = %[1]q
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]
[grpc]
  address = %[2]q
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = %[3]q
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = %[4]q
`

// containerdNetwork is the network that nodes with containerd commonly have.
const containerdNetwork = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
`

const containerdSocket = "/run/containerd/containerd.sock"

func startContainerd(ctx context.Context, p plan) (*daemon, error) {
	dir := filepath.Join(p.Dir, "containerd")
	confs := filepath.Join(dir, "net.d")
	if err := os.MkdirAll(confs, 0o755); err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "config.toml")
	if err := errors.Join(
		os.WriteFile(filepath.Join(confs, "10-pods.conflist"), []byte(containerdNetwork), 0o644),
		os.WriteFile(config, fmt.Appendf(nil, containerdConfig, filepath.Join(dir, "root"), containerdSocket, pauseImage, confs), 0o644),
	); err != nil {
		return nil, err
	}
	if err := os.Setenv("PATH", p.Peers+":"+os.Getenv("PATH")); err != nil { // where it looks for its shim
		return nil, err
	}
	d, err := start(ctx, p.Dir, "containerd", containerdSocket, filepath.Join(p.Peers, "containerd"), "--config", config)
	if err != nil {
		return nil, err
	}
	for _, image := range []string{"web.tar", "pause.tar"} {
		if err := program(ctx, filepath.Join(p.Peers, "ctr"), "--address", containerdSocket, "--namespace", "k8s.io", "images", "import", filepath.Join(p.Dir, image)); err != nil {
			return d, err
		}
	}
	return d, nil
}

// startHuskd starts a huskd that can't use the OCI runtime without, so that it uses the other one.
func startHuskd(ctx context.Context, p plan, name, without string, subnet int) (*daemon, error) {
	root := p.rootOf(name)
	state := "/run/" + name
	socket := state + "/husk.sock"
	config := filepath.Join(p.Dir, name+".toml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "[runtimes.%s]\npath = \"/nonexistent\"\n", without), 0o644); err != nil {
		return nil, err
	}
	d, err := start(ctx, p.Dir, name, socket, filepath.Join(p.Bin, "huskd"), "--config", config, "--root", root, "--state", state,
		"--listen", "unix://"+socket, "--cni-conf-dir=", fmt.Sprintf("--pod-subnets=10.%d.0.0/16", subnet))
	if err != nil {
		return nil, err
	}
	return d, program(ctx, filepath.Join(p.Bin, "husk"), "--socket", socket, "image", "load", filepath.Join(p.Dir, "web.tar"))
}

// program runs a program and returns its output on failure.
func program(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(name), err, bytes.TrimSpace(out))
	}
	return nil
}
