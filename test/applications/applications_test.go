package applications

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
	"github.com/huskd/husk/test/testimage"
)

func TestMain(m *testing.M) { node.Main(m) }

// application is an application on a node of its own, with a pod beside it from which it is used.
type application struct {
	*node.Node
	t    *testing.T
	d    *node.Daemon
	file string
}

// within is how long an application may take to do something, on a busy machine.
const within = 90 * time.Second

const client = `apiVersion: v1
kind: Pod
metadata:
  name: client
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: client
    image: busybox:1.36
    command: [sleep, "100000"]
`

var imageLine = regexp.MustCompile(`(?m)^[ -]*image: (.*)$`)

// start runs the manifest file, as it is, on a node with its images.
func start(t *testing.T, file string) *application {
	t.Helper()
	manifest, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	a := &application{Node: node.New(t), t: t}
	a.d = a.Huskd()
	a.load(client + string(manifest))
	a.file = a.write(file, string(manifest))
	a.MustHusk("run", "--wait", "--timeout", "90s", a.write("client.yaml", client))
	a.run()
	return a
}

// load loads the images that manifests name.
func (a *application) load(manifests string) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), 5*time.Minute)
	defer cancel()
	var images []testimage.Named
	for _, m := range imageLine.FindAllStringSubmatch(manifests, -1) {
		name := m[1]
		if slices.ContainsFunc(images, func(i testimage.Named) bool { return slices.Contains(i.Names, name) }) {
			continue
		}
		image, err := Build(ctx, name)
		if err != nil {
			a.t.Fatal(err)
		}
		images = append(images, testimage.Named{Image: image, Names: []string{name}})
	}
	archive := filepath.Join(a.Dir, "images.tar")
	f, err := os.Create(archive)
	if err != nil {
		a.t.Fatal(err)
	}
	defer f.Close()
	if err := testimage.WriteDockerArchive(f, images...); err != nil {
		a.t.Fatal(err)
	}
	a.MustHusk("image", "load", archive)
	if err := os.Remove(archive); err != nil {
		a.t.Fatal(err)
	}
}

// write writes a file that the node sees at the same path, which it returns.
func (a *application) write(name, content string) string {
	a.t.Helper()
	path := filepath.Join(a.Dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// run runs the application's file and waits until all of it is available.
func (a *application) run() {
	a.t.Helper()
	began := time.Now()
	if r := a.Husk("run", "--wait", "--timeout", "90s", a.file); r.Code != 0 {
		a.t.Fatalf("%s%s\n%s\n%s", r.Stdout, r.Stderr, a.Husk("ps", "-a").Stdout, a.Husk("events").Stdout)
	}
	a.t.Logf("%s: available after %v", filepath.Base(a.file), time.Since(began).Round(10*time.Millisecond))
}

// change replaces text in the application's file and runs it again.
func (a *application) change(replace ...string) {
	a.t.Helper()
	manifest, err := os.ReadFile(a.file)
	if err != nil {
		a.t.Fatal(err)
	}
	changed := strings.NewReplacer(replace...).Replace(string(manifest))
	if changed == string(manifest) {
		a.t.Fatalf("%q is not in %s", replace, a.file)
	}
	a.write(filepath.Base(a.file), changed)
	a.run()
}

// in runs a command in a pod and returns what it prints.
func (a *application) in(pod string, command ...string) string {
	a.t.Helper()
	r := a.Husk(append([]string{"exec", pod, "--"}, command...)...)
	return r.Stdout + r.Stderr
}

// podOf returns a pod of a workload such as deployment/default/web.
func (a *application) podOf(owner string) string {
	a.t.Helper()
	var pods []struct{ Name, Owner string }
	if err := json.Unmarshal([]byte(a.MustHusk("ps", "-o", "json")), &pods); err != nil {
		a.t.Fatal(err)
	}
	for _, p := range pods {
		if p.Owner == owner {
			return p.Name
		}
	}
	a.t.Fatalf("%s has no pod", owner)
	return ""
}

// get returns what is at a URL, for the client.
func (a *application) get(url string) string {
	a.t.Helper()
	return a.in("client", "timeout", "5", "wget", "-q", "-O", "-", url)
}

// shows waits until the client gets text from a URL.
func (a *application) shows(url, text string) {
	a.t.Helper()
	a.until(text, func() string { return a.get(url) })
}

// until waits until text is in what get returns.
func (a *application) until(text string, get func() string) {
	a.t.Helper()
	node.Eventually(a.t, within, func() string {
		if got := get(); !strings.Contains(got, text) {
			return "want " + text + ", got " + got
		}
		return ""
	})
}

// clusterIP matches the address of a Service in what nslookup prints.
var clusterIP = regexp.MustCompile(`(?s)Name:.*?Address(?: 1)?: ([0-9.]+)`)

// survives kills huskd, reboots the node and checks the application after each. While there is no
// huskd, the web server at a Service's port must answer with text.
func (a *application) survives(service, port, text string, check func()) {
	a.t.Helper()
	lookup := a.in("client", "nslookup", service+".default.svc.cluster.local")
	m := clusterIP.FindStringSubmatch(lookup)
	if m == nil {
		a.t.Fatalf("the name %s: %s", service, lookup)
	}
	a.d.Kill()
	if body, err := node.Get(a.Net(), m[1]+":"+port); err != nil || !strings.Contains(body, text) {
		a.t.Errorf("without huskd, %s answers %q, %v; want %s", service, body, err, text)
	}
	a.d = a.Huskd()
	check()
	a.d.Stop()
	a.Reboot()
	a.d = a.Huskd()
	began := time.Now()
	check()
	a.t.Logf("%s: answers %v after a reboot", filepath.Base(a.file), time.Since(began).Round(10*time.Millisecond))
}

// end removes the application, except for the files of claims, then these, and checks that nothing
// is left.
func (a *application) end(claims ...string) {
	a.t.Helper()
	a.MustHusk("rm", "-f", a.file)
	a.MustHusk("rm", "-f", "client")
	if pods := a.MustHusk("ps", "-a"); strings.Count(pods, "\n") > 1 {
		a.t.Errorf("pods are left:\n%s", pods)
	}
	var kept []struct{ Name string }
	if err := json.Unmarshal([]byte(a.MustHusk("volume", "ls", "-o", "json")), &kept); err != nil {
		a.t.Fatal(err)
	}
	var names []string
	for _, claim := range kept {
		names = append(names, claim.Name)
		a.MustHusk("volume", "rm", claim.Name)
	}
	if slices.Sort(names); !slices.Equal(names, claims) {
		a.t.Errorf("the claims %v were left, want %v", names, claims)
	}
	a.d.Stop()
	a.NothingLeft()
}

// TestGuestbook writes to one redis and reads from others, through three web servers.
func TestGuestbook(t *testing.T) {
	t.Parallel()
	a := start(t, "guestbook.yaml")
	check := func() {
		t.Helper()
		a.shows("http://frontend/?cmd=set&value=hello%20from%20here", "Updated")
		a.shows("http://frontend.default.svc.cluster.local/?cmd=get", "hello from here")
	}
	check()
	servers := map[string]bool{}
	node.Eventually(t, within, func() string {
		servers[a.get("http://frontend")] = true
		if len(servers) < 3 {
			return "three web servers to answer"
		}
		return ""
	})
	a.change(`value: "1"`, `value: "2"`)
	for range 10 {
		a.shows("http://frontend", "Guestbook 2 at frontend-")
	}
	check()
	a.survives("frontend", "80", "Guestbook 2 at frontend-", check)
	a.end()
}

// TestWordPress installs WordPress, which keeps its posts in a database of a claim.
func TestWordPress(t *testing.T) {
	t.Parallel()
	a := start(t, "wordpress.yaml")
	node.Eventually(t, within, func() string {
		const form = "weblog_title=Pods and sausages&user_name=admin&admin_password=secret-1&admin_password2=secret-1&pw_weak=1&admin_email=admin@example.com&blog_public=0&Submit=Install"
		answer := a.in("client", "timeout", "60", "wget", "-q", "-O", "-", "--post-data", form, "http://wordpress/wp-admin/install.php?step=2")
		if strings.Contains(answer, "WordPress has been installed") || strings.Contains(answer, "already installed") {
			return ""
		}
		return "WordPress to install itself, not " + answer
	})
	check := func() { a.shows("http://wordpress/", "<title>Pods and sausages") }
	check()
	a.change(`example.com/version: "1"`, `example.com/version: "2"`)
	check()
	a.survives("wordpress", "80", "", check)
	a.end("mysql-pv-claim", "wp-pv-claim")
}

// TestEtcd writes to three members of etcd, which keep it in claims of their own.
func TestEtcd(t *testing.T) {
	t.Parallel()
	a := start(t, "etcd.yaml")
	etcdctl := func(args ...string) string {
		return a.in("etcd-1", append([]string{"etcdctl", "--endpoints", "http://etcd-client:2379", "--command-timeout", "5s"}, args...)...)
	}
	a.until("OK", func() string { return etcdctl("put", "greeting", "hello") })
	check := func() {
		t.Helper()
		a.until("hello", func() string { return etcdctl("get", "greeting") })
		for _, member := range []string{"etcd-0", "etcd-1", "etcd-2"} {
			a.shows("http://"+member+".etcd:2379/health", `"health":"true"`)
		}
	}
	check()
	a.change(`example.com/version: "1"`, `example.com/version: "2"`)
	check()
	a.MustHusk("rm", "-f", "etcd-2")
	check()
	a.survives("etcd-client", "2379", "", check)
	a.end("data-etcd-0", "data-etcd-1", "data-etcd-2")
}

// TestVoting votes, and waits until the votes are counted.
func TestVoting(t *testing.T) {
	t.Parallel()
	a := start(t, "voting.yaml")
	vote := func(voter, option string) {
		t.Helper()
		a.shows("http://vote:5000/?voter="+voter+"&vote="+option, "voted "+option)
	}
	vote("alice", "a")
	vote("bob", "b")
	vote("carol", "a")
	a.shows("http://result:5001/", "a 2\nb 1\n")
	vote("alice", "b")
	a.shows("http://result:5001/", "a 1\nb 2\n")
	// Both web servers have a port of the node.
	a.until("a 1\nb 2\n", func() string {
		body, err := node.Get(a.OtherNet(), node.Address4+":31001")
		if err != nil {
			return err.Error()
		}
		return body
	})
	a.change("value: Cats", "value: Otters")
	a.shows("http://vote:5000/", "Otters or Dogs? Asked by vote-")
	a.survives("vote", "5000", "Otters or Dogs?", func() {
		t.Helper()
		vote("dave", "a")
		a.shows("http://result:5001/", "a ")
	})
	a.end()
}

// TestCronJob waits for the Jobs of a schedule.
func TestCronJob(t *testing.T) {
	t.Parallel()
	a := start(t, "cronjob.yaml")
	reported := regexp.MustCompile(`by (report-[0-9]+-[a-z0-9]+)`)
	reports := func() (pods []string) {
		for _, m := range reported.FindAllStringSubmatch(a.in(a.podOf("deployment/default/ledger"), "redis-cli", "-h", "ledger", "lrange", "reports", "0", "-1"), -1) {
			pods = append(pods, m[1])
		}
		return pods
	}
	node.Eventually(t, within, func() string {
		if len(reports()) == 0 {
			return "a report"
		}
		return ""
	})
	a.d.Kill()
	a.d = a.Huskd()
	if pods := reports(); len(slices.Compact(slices.Sorted(slices.Values(pods)))) != len(pods) {
		t.Errorf("the reports are of %v", pods)
	}
	a.end("ledger")
}
