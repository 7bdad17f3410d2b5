package e2e

import (
	"os"
	"testing"
)

// TestCopyFiles copies files into and out of real containers: ordinary ones, those of a user
// namespace, and ones with a root that can't be written.
func TestCopyFiles(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	if err := os.Chmod(w.Dir, 0o711); err != nil { // the root user of a user namespace must reach its files
		t.Fatal(err)
	}
	sleep := "command: " + shell("exec sleep 1000") + ", volumeMounts: [{name: data, mountPath: /data}]"
	volume := ", volumes: [{name: data, emptyDir: {}}]"
	w.run(podOf("plain", only(sleep)+volume), "--wait")
	w.run(podOf("mapped", "hostUsers: false, "+only(sleep)+volume), "--wait")
	w.run(podOf("fixed", only(sleep+", securityContext: {readOnlyRootFilesystem: true}")+volume), "--wait")
	site := w.Path("/root/site")
	for _, dir := range []string{site, site + "/sub"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{"/index": "home\n", "/sub/page": "page\n"} {
		if err := os.WriteFile(site+name, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	for _, pod := range []string{"plain", "mapped", "fixed"} {
		w.MustHusk("cp", "/root/site", pod+":/data")
		got := w.sh(pod, "cat /data/site/index /data/site/sub/page && stat -c '%u:%g %a' /data/site/index")
		if got != "home\npage\n0:0 640" {
			t.Errorf("%s has %q", pod, got)
		}
		w.MustHusk("cp", "default/"+pod+":/data/site/.", "/root/back-"+pod, "-c", "c")
		if got := w.Must("cat", "/root/back-"+pod+"/sub/page"); got != "page\n" {
			t.Errorf("from %s came back %q", pod, got)
		}
	}
	// A relative path begins at the root, an absolute symbolic link leads to the container's file, and
	// a stream needs no file.
	w.sh("plain", "ln -s /data/site /tmp/link; ln -s /root/site/index /tmp/escape")
	w.MustHusk("cp", "/root/site/sub/page", "pod/plain/c:tmp/link/")
	w.fails("a link to a file of the host", w.Husk("cp", "plain:/tmp/escape/", "/root/none"), 1, `husk: container c of pod default/plain: open /tmp/escape/: no such file or directory`)
	if got := w.sh("plain", "cat /data/site/page"); got != "page" {
		t.Errorf("through a link came %q", got)
	}
	husk := w.Binary("husk")
	w.Must("sh", "-c", husk+" cp plain:/data/site - | tar -t | grep -qx site/sub/page && tar -C /root -c site | "+husk+" cp - plain:/tmp")
	if got := w.sh("plain", "cat /tmp/site/sub/page"); got != "page" {
		t.Errorf("a stream made %q", got)
	}
	w.fails("a root that can't be written", w.Husk("cp", "/root/site", "fixed:/"), 1, `husk: container c of pod default/fixed: mkdir .*: read-only file system`)
	w.fails("no such file", w.Husk("cp", "plain:/none", "/root"), 1, `husk: container c of pod default/plain: open /none: no such file or directory`)
	w.fails("no such local file", w.Husk("cp", "/none", "plain:/tmp"), 1, `husk: open /none: no such file or directory`)
	w.fails("no such pod", w.Husk("cp", "/root/site", "absent:/tmp"), 1, `husk: no pod "absent": .*`)
	w.fails("two pods", w.Husk("cp", "plain:/a", "mapped:/b"), 2, `husk: one of plain:/a and mapped:/b must be POD:PATH, and the other a path on this machine.*`)
	w.MustHusk("stop", "plain")
	w.fails("a stopped pod", w.Husk("cp", "plain:/data", "/root"), 1, `husk: container c of pod default/plain isn't running: .*`)
	w.remove("plain", "mapped", "fixed")
	w.end()
}
