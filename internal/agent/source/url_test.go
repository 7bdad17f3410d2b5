package source

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/huskd/husk/internal/manifest"
)

// manifestServer is a web server with a manifest, and the URL source that fetches it.
type manifestServer struct {
	t        *testing.T
	server   *httptest.Server
	mu       sync.Mutex
	answer   func(w http.ResponseWriter, r *http.Request)
	requests int
	sets     []string // names of the pods of each delivery
	log      bytes.Buffer
}

func (o *manifestServer) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.log.Write(p)
}

func newManifestServer(t *testing.T, start func(http.Handler) *httptest.Server, change func(*URL)) *manifestServer {
	o := &manifestServer{t: t}
	o.server = start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.requests++
		o.answer(w, r)
	}))
	o.answer = respond("apiVersion: v1\nkind: List\nitems: []\n")
	u := &URL{Note: func(string, manifest.Unused) {}, URL: o.server.URL + "/pods?x=1", Node: "node", Interval: 5 * time.Millisecond, Log: slog.New(slog.NewTextHandler(o, nil)), Deliver: func(set Set) {
		o.mu.Lock()
		defer o.mu.Unlock()
		var names []string
		for _, p := range set.Pods {
			names = append(names, p.Name)
		}
		if len(names) == 0 {
			names = []string{"none"}
		}
		o.sets = append(o.sets, strings.Join(names, " "))
	}}
	change(u)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- u.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		o.server.Close()
	})
	return o
}

func respond(text string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) }
}

func (o *manifestServer) setAnswer(answer func(http.ResponseWriter, *http.Request)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answer = answer
}

// waitFor waits for the deliveries and for a text in the log.
func (o *manifestServer) waitFor(sets, line string) {
	o.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		o.mu.Lock()
		got, said := strings.Join(o.sets, ", "), o.log.String()
		o.mu.Unlock()
		if got == sets && strings.Contains(said, line) {
			return
		}
		if time.Now().After(end) {
			o.t.Fatalf("delivered %q, want %q; log:\n%s\nwant %q", got, sets, said, line)
		}
	}
}

// waitRequests waits for n further requests.
func (o *manifestServer) waitRequests(n int) {
	o.t.Helper()
	o.mu.Lock()
	want := o.requests + n
	o.mu.Unlock()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		o.mu.Lock()
		now := o.requests
		o.mu.Unlock()
		if now >= want {
			return
		}
	}
	o.t.Fatal("timeout waiting for requests")
}

func TestURL(t *testing.T) {
	t.Parallel()
	o := newManifestServer(t, httptest.NewServer, func(*URL) {})
	o.waitFor("none", "")
	o.setAnswer(respond(fmt.Sprintf(pod, "a")))
	o.waitFor("none, a", "")
	o.waitRequests(3) // the same manifest repeatedly
	o.setAnswer(respond(fmt.Sprintf(pod, "a") + "---\n" + fmt.Sprintf(pod, "b")))
	o.waitFor("none, a, a b", "")
	// None of these answers removes a pod.
	for _, c := range []struct {
		answer func(http.ResponseWriter, *http.Request)
		line   string
	}{
		{func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "broken", http.StatusInternalServerError) }, "it answers 500 Internal Server Error"},
		{respond(""), "there is no pod in it"},
		{respond("<!DOCTYPE html><html><body>Log in, please</body></html>"), "the pods from the URL are kept"},
		{respond(fmt.Sprintf(pod, "A B")), "metadata.name"},
		{respond(strings.Repeat("#", maxFile+1)), "larger than 10 MiB"},
		{func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/more", http.StatusFound) }, "more than 10 redirects"},
		{func(_ http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) }, "EOF"},
		{func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			fmt.Fprintf(w, pod, "a")
		}, "unexpected EOF"},
	} {
		o.setAnswer(c.answer)
		o.waitFor("none, a, a b", c.line)
	}
	o.mu.Lock()
	said := strings.Count(o.log.String(), "it answers 500")
	o.mu.Unlock()
	if said != 1 {
		t.Errorf("the same error was logged %d times", said)
	}
	o.setAnswer(respond(fmt.Sprintf(pod, "b")))
	o.waitFor("none, a, a b, b", "")
	o.setAnswer(respond("apiVersion: v1\nkind: PodList\nitems: []\n"))
	o.waitFor("none, a, a b, b, none", "")
}

func TestURLConditions(t *testing.T) {
	t.Parallel()
	var tags []string
	o := newManifestServer(t, httptest.NewServer, func(u *URL) {
		u.URL = strings.Replace(u.URL, "//", "//me:secret@", 1)
		u.Header = http.Header{"X-A": {"1", "2"}, "Host": {"pods.test"}}
	})
	o.setAnswer(func(w http.ResponseWriter, r *http.Request) {
		tags = append(tags, r.Header.Get("If-None-Match")+r.Header.Get("If-Modified-Since"))
		user, password, _ := r.BasicAuth()
		if user+password != "mesecret" || r.Host != "pods.test" || len(r.Header["X-A"]) != 2 || r.URL.RawQuery != "x=1" {
			http.Error(w, "who are you", http.StatusUnauthorized)
			return
		}
		if r.Header.Get("If-None-Match") == `"1"` {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("ETag", `"1"`)
		w.Header().Set("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
		fmt.Fprintf(w, pod, "a")
	})
	o.waitRequests(5)
	o.setAnswer(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "", http.StatusForbidden) })
	o.waitRequests(2)
	o.mu.Lock()
	defer o.mu.Unlock()
	if got := o.sets[len(o.sets)-1]; got != "a" || tags[len(tags)-1] != `"1"Thu, 01 Jan 2026 00:00:00 GMT` {
		t.Errorf("delivered %q, asked with %q", o.sets, tags)
	}
	if strings.Contains(o.log.String(), "secret") || !strings.Contains(o.log.String(), "403") {
		t.Errorf("log:\n%s", o.log.String())
	}
}

// TestURLWithTLS checks that certificates are verified and redirects from https to http are
// refused.
func TestURLWithTLS(t *testing.T) {
	t.Parallel()
	o := newManifestServer(t, httptest.NewTLSServer, func(*URL) {})
	o.waitFor("", "certificate")
	for _, c := range []struct{ from, to, want string }{
		{"https://a/", "http://a/", "without TLS"}, {"https://a/", "https://b/", ""}, {"http://a/", "https://b/", ""},
	} {
		from, _ := http.NewRequest(http.MethodGet, c.from, nil)
		to, _ := http.NewRequest(http.MethodGet, c.to, nil)
		if err := checkRedirect(to, []*http.Request{from}); (err == nil) != (c.want == "") {
			t.Errorf("%s to %s: %v", c.from, c.to, err)
		}
	}
}
