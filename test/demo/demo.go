package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/test/testimage"
)

const (
	manifest = "examples/web.yaml"
	image    = "localhost/web:1"
	name     = "web"
)

// timeout bounds each step, all of which take only a moment.
const timeout = 20 * time.Second

type demo struct {
	dir     string // holds everything that the demo creates
	bin     string // directory of huskd and husk
	subnets []string
	huskd   *exec.Cmd
	ended   chan struct{} // closed when huskd has exited
	client  *client.Client
	address string // primary address of the pod
}

func (d *demo) root() string           { return filepath.Join(d.dir, "root") }
func (d *demo) socket() string         { return "unix://" + filepath.Join(d.dir, "husk.sock") }
func (d *demo) instance() pod.Instance { return pod.InstanceOf(d.root()) }
func (d *demo) log() string            { return filepath.Join(d.dir, "huskd.log") }

// start starts huskd in a new session, so that ^C reaches only the demo.
func (d *demo) start(ctx context.Context) error {
	title("start huskd on its own directories and subnets")
	log, err := os.Create(d.log())
	if err != nil {
		return err
	}
	defer log.Close()
	d.huskd = exec.Command(filepath.Join(d.bin, "huskd"), "--config", "/dev/null", "--cni-conf-dir=",
		"--root", d.root(), "--state", filepath.Join(d.dir, "state"), "--listen", d.socket(), "--pod-subnets", strings.Join(d.subnets, ","))
	d.huskd.Stdout, d.huskd.Stderr = log, log
	d.huskd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	command(d.huskd.Args)
	began := time.Now()
	if err := d.huskd.Start(); err != nil {
		return err
	}
	d.ended = make(chan struct{})
	go func() {
		_ = d.huskd.Wait()
		close(d.ended)
	}()
	if d.client, err = client.New(d.socket()); err != nil {
		return err
	}
	err = until(ctx, func() error {
		select {
		case <-d.ended:
			return fatal{fmt.Errorf("huskd exited:\n%s", d.readLog())}
		default:
		}
		_, err := d.client.Version(ctx, &huskv1.VersionRequest{})
		return err
	})
	if err != nil {
		return err
	}
	say("it serves after %s", ms(time.Since(began)))
	return d.advise(ctx)
}

// advise shows the problems that huskd finds on this machine.
func (d *demo) advise(ctx context.Context) error {
	answer, err := d.client.Doctor(ctx, &huskv1.DoctorRequest{})
	if err != nil {
		return err
	}
	for _, c := range answer.Checks {
		if c.Level == "warn" || c.Level == "fail" {
			say("%s: %s: %s; %s", c.Level, c.Name, c.Finding, c.Remedy)
		}
	}
	return nil
}

// load builds an image and loads it into huskd.
func (d *demo) load(ctx context.Context) error {
	title("build an image from Debian's busybox and load it")
	made, err := testimage.Build(ctx, testimage.Spec{Flavour: testimage.Web})
	if err != nil {
		return err
	}
	path := filepath.Join(d.dir, "web.tar")
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	err = testimage.WriteArchive(file, testimage.Named{Image: made, Names: []string{image}})
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	return d.husk(ctx, "image", "load", path)
}

// run runs the manifest and sends a request to the pod as soon as it has an address.
func (d *demo) run(ctx context.Context) error {
	title("run a pod")
	began := time.Now()
	ran := make(chan error, 1)
	go func() { ran <- d.husk(ctx, "run", "--wait", manifest) }()
	var answer string
	asked := until(ctx, func() (err error) {
		if d.address == "" {
			d.address, err = d.podAddress(ctx)
		}
		if err == nil {
			answer, err = ask(ctx, "http://"+d.address+"/")
		}
		return err
	})
	took := time.Since(began)
	if err := errors.Join(<-ran, asked); err != nil {
		return err
	}
	say("")
	say("http://%s/ answers: %s", d.address, answer)
	say("from the manifest to this answer: %s", bold(ms(took)))
	return nil
}

func (d *demo) podAddress(ctx context.Context) (string, error) {
	answer, err := d.client.ListPods(ctx, &huskv1.ListPodsRequest{})
	if err != nil {
		return "", err
	}
	for _, p := range answer.Pods {
		if p.Name == name && len(p.Ips) > 0 {
			return p.Ips[0], nil
		}
	}
	return "", errors.New("the pod has no address")
}

func ask(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	req.Close = true
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return strings.TrimSpace(string(body)), err
}

// look shows what a person would look at.
func (d *demo) look(ctx context.Context) error {
	title("look at it")
	if err := d.husk(ctx, "ps"); err != nil {
		return err
	}
	if err := d.showNetwork(ctx); err != nil {
		return err
	}
	if err := d.husk(ctx, "exec", name, "-c", "server", "--", "ip", "-o", "address", "show", "eth0"); err != nil {
		return err
	}
	return d.husk(ctx, "logs", name, "-c", "visitor", "--tail", "1")
}

// until calls do until it succeeds or its error is fatal.
func until(ctx context.Context, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		err := do()
		if err == nil || errors.As(err, &fatal{}) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Millisecond):
		}
	}
}

type fatal struct{ error }

func (d *demo) readLog() string {
	data, _ := os.ReadFile(d.log())
	return string(data)
}
