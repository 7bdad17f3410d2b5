package e2e

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/node"
)

// TestManifestURL declares pods at a URL. They stay if the server fails or returns garbage, also if
// that happens when huskd starts.
func TestManifestURL(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	var listener net.Listener
	if err := netns.Do(n.Net(), func() (err error) {
		listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	code, body := http.StatusOK, "apiVersion: v1\nkind: List\nitems: []\n"
	tagged := 0
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.Header.Get("Authorization") != "Bearer key" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		tag := fmt.Sprintf(`"%d"`, len(body))
		if r.Header.Get("If-None-Match") == tag && code == http.StatusOK {
			tagged++
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("ETag", tag)
		w.WriteHeader(code)
		fmt.Fprint(w, body)
	})}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	answers := func(c int, text string) {
		mu.Lock()
		defer mu.Unlock()
		code, body = c, text
	}
	url := "http://" + listener.Addr().String() + "/pods"
	flags := node.Flags("--manifest-url", url, "--manifest-url-header", "Authorization: Bearer key", "--manifest-url-interval", "1")
	w := testEnvOn(t, n, flags)
	logged := func(line string) {
		t.Helper()
		node.Eventually(t, 20*time.Second, func() string {
			if strings.Contains(w.d.Log(), line) {
				return ""
			}
			return "huskd's log doesn't say " + line
		})
	}
	one, two := podOf("one", only("command: [sleep, '1000']")), podOf("two", only("command: [sleep, '1000']"))
	answers(http.StatusOK, one+"---\n"+two)
	node.Eventually(t, 20*time.Second, func() string {
		if out := n.MustHusk("ps", "-a"); !strings.Contains(out, "one") || !strings.Contains(out, "two") {
			return "the pods are not declared:\n" + out
		}
		return ""
	})
	began := w.eventually("one", "ready", isReady).Containers[0].Started
	w.eventually("two", "ready", isReady)
	if r := n.Husk("rm", "-f", "one"); r.Code == 0 || !strings.Contains(r.Stderr, "is declared in "+url+": remove it there") {
		t.Errorf("removing a declared pod: %+v", r)
	}
	answers(http.StatusInternalServerError, "oh no")
	logged("it answers 500")
	answers(http.StatusOK, "<html>log in</html>")
	logged("must be an object")
	w.d.Kill()
	w.d = w.Huskd(flags)
	logged("the pods from the URL are kept")
	answers(http.StatusOK, one)
	node.Eventually(t, 20*time.Second, func() string {
		if out := n.MustHusk("ps", "-a"); strings.Contains(out, "two") {
			return "pod two was not removed:\n" + out
		}
		return ""
	})
	if p := w.pod("one"); p.Containers[0].Started != began || !p.Ready {
		t.Errorf("the remaining pod is %+v", p)
	}
	// Workloads follow the URL too.
	pods := func(n int) {
		t.Helper()
		node.Eventually(t, 30*time.Second, func() string {
			if got := w.podsOf("deployment/default/web"); len(got) != n || n > 0 && !got[0].Ready {
				return fmt.Sprintf("the pods of the Deployment are %v, want %d", got, n)
			}
			return ""
		})
	}
	answers(http.StatusOK, one+"---\n"+deployment("web", 2, "1"))
	pods(2)
	if r := n.Husk("rm", "deployment/web"); r.Code == 0 || !strings.Contains(r.Stderr, "is declared in "+url+": remove it there") {
		t.Errorf("removing a declared workload: %+v", r)
	}
	answers(http.StatusOK, one+"---\n"+deployment("web", 1, "11"))
	pods(1)
	answers(http.StatusOK, "apiVersion: v1\nkind: List\nitems: []\n")
	pods(0)
	w.checkUnharmed("removal of all")
	node.Eventually(t, 20*time.Second, func() string {
		mu.Lock()
		defer mu.Unlock()
		if tagged == 0 {
			return "huskd never sends If-None-Match"
		}
		return ""
	})
	w.end()
}
