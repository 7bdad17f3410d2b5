package ocitest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/oci"
)

func logFormat(b *subtest) {
	before := time.Now().Add(-time.Second)
	long := strings.Repeat("x", 20_000)
	c := b.shell("echo out; echo err >&2; echo; printf '" + long + "\\n'; printf 'no newline'").run()
	c.ends(0)
	if got, want := c.output("stdout"), "out\n\n"+long+"\nno newline"; got != want {
		b.Errorf("stdout has %d bytes, want %d: %.60q…", len(got), len(want), got)
	}
	if got := c.output("stderr"); got != "err\n" {
		b.Errorf("stderr is %q, want err", got)
	}
	partial := 0
	for _, line := range c.logLines() {
		if line.at.Before(before) || line.at.After(time.Now()) {
			b.Errorf("the time of a line is %v, want now", line.at)
		}
		if line.partial {
			partial++
		}
	}
	if partial < 2 {
		b.Errorf("the log has %d partial lines, want parts of the long line and the last one", partial)
	}
	if info, err := os.Stat(c.Log); err != nil || info.Mode().Perm()&0o007 != 0 {
		b.Errorf("mode of the log is %v, %v; want it unreadable for others", info.Mode(), err)
	}
	// Without a log the output is discarded and doesn't block.
	c = b.shell("seq 100000; exit 3")
	c.Log = ""
	c.run()
	c.ends(3)
	if err := c.Driver.ReopenLog(b.ctx(), c.ID); !errdefs.IsFailedPrecondition(err) {
		b.Errorf("ReopenLog without a log: %v, want a failed precondition", err)
	}
}

func reopenLog(b *subtest) {
	c := b.shell("n=0; while :; do n=$((n+1)); echo line $n; sleep 0.001; done").run()
	c.says("line 1\n")
	var all []logLine
	for i := range 5 {
		old := fmt.Sprintf("%s.%d", c.Log, i)
		b.must(os.Rename(c.Log, old))
		b.must(c.Driver.ReopenLog(b.ctx(), c.ID))
		if _, err := os.Stat(c.Log); err != nil {
			b.Fatal(err)
		}
		all = append(all, readLog(c, old)...)
		c.eventually("the new file is written", func() bool { return len(c.logLines()) > 0 })
	}
	b.must(c.Driver.KillAll(b.ctx(), c.ID))
	c.ends(137)
	all = append(all, c.logLines()...)
	for i, line := range all {
		if want := fmt.Sprintf("line %d", i+1); line.text != want {
			b.Fatalf("line %d of all files is %q, want %q", i+1, line.text, want)
		}
	}
	if err := c.Driver.ReopenLog(b.ctx(), c.ID); !errdefs.IsFailedPrecondition(err) {
		b.Errorf("ReopenLog of an exited container: %v, want a failed precondition", err)
	}
}

func reopenLogFails(b *subtest) {
	c := b.shell("while :; do echo line; sleep 0.01; done")
	dir := filepath.Join(b.TempDir(), "logs")
	mkdir(b, dir)
	c.Log = filepath.Join(dir, "0.log")
	c.run()
	c.says("line")
	b.must(os.RemoveAll(dir))
	if err := c.Driver.ReopenLog(b.ctx(), c.ID); err == nil {
		b.Error("ReopenLog succeeded in a missing directory")
	}
	c.isIn(oci.Running)
	mkdir(b, dir)
	b.must(c.Driver.ReopenLog(b.ctx(), c.ID))
	c.says("line")
	// The file system has no inode for another file.
	b.must(syscall.Mount("tmpfs", dir, "tmpfs", 0, "nr_inodes=2"))
	unmount := sync.OnceFunc(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	b.Cleanup(unmount)
	b.must(os.WriteFile(c.Log+".old", nil, 0o600))
	if err := c.Driver.ReopenLog(b.ctx(), c.ID); !errors.Is(err, syscall.ENOSPC) {
		b.Errorf("ReopenLog on a full file system: %v, want %v", err, syscall.ENOSPC)
	}
	c.isIn(oci.Running)
	unmount()
	b.must(c.Driver.ReopenLog(b.ctx(), c.ID))
	c.isIn(oci.Running)
}
