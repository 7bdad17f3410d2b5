package docs

import (
	"archive/tar"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/huskd/husk/test/node"
	"github.com/huskd/husk/test/page"
)

// pipelines returns the commands of the two jobs in docs/ci.md: of GitHub's and of GitLab's.
func pipelines(t *testing.T) (machine, container []string) {
	t.Helper()
	p := page.Read(t, filepath.Join(top, "docs/ci.md"))
	var github struct {
		Jobs map[string]struct {
			Steps []struct{ Uses, Run string }
		}
	}
	var gitlab struct{ Pods struct{ Script []string } }
	decode := func(section, path string, to any) {
		for _, f := range p.Section(section).Files {
			if f.Path == path {
				if err := yaml.Unmarshal([]byte(f.Content), to); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	decode("A job on a virtual machine", "/.github/workflows/pods.yaml", &github)
	decode("A job in a container", "/.gitlab-ci.yml", &gitlab)
	for _, step := range github.Jobs["pods"].Steps {
		if step.Uses == "" {
			machine = append(machine, step.Run)
		}
	}
	if len(machine) < 3 || len(gitlab.Pods.Script) < 3 {
		t.Fatalf("the jobs of docs/ci.md are %q and %q", machine, gitlab.Pods.Script)
	}
	return machine, gitlab.Pods.Script
}

// checkout creates a directory that looks like the top of the repository in a job, with the image
// that the job has built, a tarball of Husk and programs in place of sudo and apt-get.
func checkout(t *testing.T, n *node.Node) string {
	t.Helper()
	dir := filepath.Join(n.Dir, "checkout")
	examples, err := filepath.Abs(filepath.Join(top, "examples"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(dir, "examples"), os.DirFS(examples)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "stubs"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, script := range map[string]string{"sudo": `exec "$@"`, "apt-get": "exit 0"} {
		if err := os.WriteFile(filepath.Join(dir, "stubs", name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	saveArchive(t, filepath.Join(dir, "web.tar"))
	writeTarball(t, filepath.Join(dir, "husk.tar.gz"), n.Binary("husk"), n.Binary("huskd"))
	return dir
}

// writeTarball writes programs as make packages does, below bin.
func writeTarball(t *testing.T, path string, programs ...string) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewWriterLevel(file, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	for _, p := range programs {
		body, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.WriteHeader(&tar.Header{Name: "./bin/" + filepath.Base(p), Mode: 0o755, Size: int64(len(body))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
}

// job returns a script that runs a job's commands in the checkout. Each is a shell of its own.
func job(dir string, commands []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "cd %s\nexport PATH=$PWD/stubs:/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin HUSK_TARBALL=file://%s/husk.tar.gz\n", dir, dir)
	for _, c := range commands {
		fmt.Fprintf(&b, "sh -ec '%s' || exit\n", strings.ReplaceAll(c, "'", `'\''`))
	}
	return b.String()
}

// jobPod is the container of a job. It has the node's programs, and its file system is an overlay.
const jobPod = `
apiVersion: v1
kind: Pod
metadata: {name: job-container}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: job
    image: localhost/web:1
    command: [sh, -c, 'trap "exit 0" TERM; while :; do sleep 1 & wait $!; done']
    securityContext: {privileged: true}
    volumeMounts:
    - {name: usr, mountPath: /usr, readOnly: true}
    - {name: usr, mountPath: /bin, subPath: bin, readOnly: true}
    - {name: usr, mountPath: /sbin, subPath: sbin, readOnly: true}
    - {name: usr, mountPath: /lib, subPath: lib, readOnly: true}
    - {name: usr, mountPath: /lib64, subPath: lib64, readOnly: true}
    - {name: local, mountPath: /usr/local}
    - {name: checkout, mountPath: CHECKOUT}
    - {name: data, mountPath: /var/lib/husk}
  volumes:
  - {name: usr, hostPath: {path: /usr}}
  - {name: checkout, hostPath: {path: CHECKOUT}}
  - {name: local, emptyDir: {}}
  - {name: data, emptyDir: {}}
`

// TestCI runs the jobs of docs/ci.md.
func TestCI(t *testing.T) {
	t.Parallel()
	machine, container := pipelines(t)
	const tests = "web 10.201.0."

	t.Run("machine", func(t *testing.T) {
		t.Parallel()
		n := node.New(t)
		dir := checkout(t, n)
		run := func(commands []string) node.Result {
			began := time.Now()
			n.Must("mount", "-t", "tmpfs", "local", "/usr/local") // where the job installs
			r := n.Run("env", "HUSK_ROOT="+n.Root, "sh", "-c", job(dir, commands))
			t.Logf("%v:\n%s%s", time.Since(began).Round(time.Millisecond), r.Stdout, r.Stderr)
			n.Must("umount", "/usr/local")
			n.NothingLeft()
			return r
		}
		if r := run(machine); r.Code != 0 || strings.Count(r.Stdout, tests) != 2 {
			t.Errorf("exit code %d", r.Code)
		}
		broken := filepath.Join(dir, "broken.yaml")
		manifest := strings.Replace(read(t, "examples/job.yaml"), "echo the sum", "exit 3; echo the sum", 1)
		manifest = strings.Replace(manifest, "restartPolicy: OnFailure", "restartPolicy: Never", 1)
		if err := os.WriteFile(broken, []byte(manifest), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := run(append(slices.Clone(machine[:len(machine)-1]), "examples/ci/pods.sh web.tar broken.yaml")); r.Code != 1 || !strings.Contains(r.Stderr, "exit code 3") {
			t.Errorf("a job whose pod fails: exit code %d", r.Code)
		}
	})

	t.Run("container", func(t *testing.T) {
		t.Parallel()
		n := node.New(t)
		dir := checkout(t, n)
		// The subnets of the container's host and those inside of the container must differ.
		d := n.Huskd(node.Flags("--pod-subnets", "10.96.0.0/24,fd96::/64", "--service-subnets", "10.97.0.0/24,fd97::/112"))
		n.MustHusk("image", "load", filepath.Join(dir, "web.tar"))
		manifest := filepath.Join(n.Dir, "job.yaml")
		if err := os.WriteFile(manifest, []byte(strings.ReplaceAll(jobPod, "CHECKOUT", dir)), 0o600); err != nil {
			t.Fatal(err)
		}
		n.MustHusk("run", "--wait", "--timeout", "1m", manifest)
		began := time.Now()
		r := n.Husk("exec", "job-container", "--", "sh", "-c", job(dir, container))
		t.Logf("%v:\n%s%s", time.Since(began).Round(time.Millisecond), r.Stdout, r.Stderr)
		if r.Code != 0 || strings.Count(r.Stdout, tests) != 2 {
			t.Errorf("exit code %d", r.Code)
		}
		r = n.Husk("exec", "job-container", "--", "env", "HUSK_ROOT=/data", "sh", "-c", job(dir, container))
		if r.Code == 0 || !strings.Contains(r.Stderr, "set HUSK_ROOT") {
			t.Errorf("with data on an overlay: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
		}
		n.MustHusk("rm", "-f", manifest)
		d.Stop()
		n.NothingLeft()
	})
}
