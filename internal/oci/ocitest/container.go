package ocitest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/huskd/husk/internal/oci"
)

// container is a container of a test, with its bundle.
type container struct {
	*subtest
	oci.Create
	spec   *specs.Spec
	cgroup string
}

// container makes a bundle that runs args. At the end of the test the container is deleted, and
// anything left of it fails the test.
func (b *subtest) container(args ...string) *container {
	b.Helper()
	c := &container{subtest: b}
	c.ID = "ocitest-" + unique()
	c.Bundle = filepath.Join(b.TempDir(), "bundle")
	c.Log = filepath.Join(b.TempDir(), "log")
	mkdir(b, c.Bundle)
	c.cgroup = b.env.parent + "/" + c.ID
	c.spec = newSpec(b.env.rootfs, c.cgroup, args...)
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := b.Driver.Delete(ctx, c.ID); err != nil {
			b.Error(err)
		}
		c.leftNothing()
	})
	return c
}

// shell returns a container that runs a script.
func (b *subtest) shell(script string) *container { return b.container("sh", "-c", script) }

func (c *container) create() oci.Process {
	c.Helper()
	c.spec.Process.Terminal = c.Terminal
	writeSpec(c.T, c.Bundle, c.spec)
	p, err := c.Driver.Create(c.ctx(), c.Create)
	c.must(err)
	return p
}

// run creates and starts the container.
func (c *container) run() *container {
	c.Helper()
	c.create()
	c.must(c.Driver.Start(c.ctx(), c.ID))
	return c
}

func (c *container) wait() oci.Exit {
	c.Helper()
	exit, err := c.Driver.Wait(c.ctx(), c.ID)
	c.must(err)
	return exit
}

// ends waits for the exit and checks its code.
func (c *container) ends(code int) oci.Exit {
	c.Helper()
	exit := c.wait()
	if exit.Code != code || exit.Lost {
		c.Errorf("exit is %+v, want code %d", exit, code)
	}
	if age := time.Since(exit.At); age < -time.Second || age > 2*patience {
		c.Errorf("the exit was %v ago", age)
	}
	return exit
}

// output returns the log of a stream so far.
func (c *container) output(stream string) string {
	var out strings.Builder
	for _, line := range c.logLines() {
		if line.stream == stream {
			out.WriteString(line.text)
			if !line.partial {
				out.WriteByte('\n')
			}
		}
	}
	return out.String()
}

// says waits until the log contains text.
func (c *container) says(text string) {
	c.Helper()
	c.eventually("the log contains "+text, func() bool { return strings.Contains(c.output("stdout"), text) })
}

// logLine is a line of a log in the CRI format.
type logLine struct {
	at      time.Time
	stream  string
	partial bool
	text    string
}

func (c *container) logLines() []logLine { return readLog(c, c.Log) }

func readLog(c *container, path string) []logLine {
	c.Helper()
	raw, _ := os.ReadFile(path)
	var out []logLine
	for line := range strings.Lines(string(raw)) {
		fields := strings.SplitN(line, " ", 4)
		if !strings.HasSuffix(line, "\n") { // still being written
			break
		}
		if len(fields) != 4 || fields[2] != "F" && fields[2] != "P" {
			c.Fatalf("the log has the line %q", line)
		}
		at, err := time.Parse(time.RFC3339Nano, fields[0])
		c.must(err)
		out = append(out, logLine{at, fields[1], fields[2] == "P", strings.TrimSuffix(fields[3], "\n")})
	}
	return out
}

// leftNothing checks that no trace of a deleted container is left.
func (c *container) leftNothing() {
	c.Helper()
	for _, trace := range Traces(c.env.host.Cgroup, c.ID, c.cgroup, c.StateDir, c.Bundle) {
		c.Errorf("left behind: %s", trace)
	}
}
