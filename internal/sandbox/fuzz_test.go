package sandbox

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/journal/journaltest"
	"github.com/huskd/husk/internal/pod"
)

const fuzzID = "f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0"

func discard(t testing.TB) Config {
	j, _, err := journal.OpenOn((&journaltest.Disk{}).Mount())
	if err != nil {
		t.Fatal(err)
	}
	return Config{Instance: "f0f0", State: "/nowhere", Journal: j, Cgroups: cgroups{}, Host: host.Facts{BootID: "this"}, Log: slog.New(slog.DiscardHandler)}
}

// cgroups takes a cgroup_parent for a path.
type cgroups struct{ Cgroups }

func (cgroups) Parent(named string) (string, error) { return named, nil }

// FuzzConfig: every config is refused with an error of one line, or its sandbox has all paths below
// its own directories.
func FuzzConfig(f *testing.F) {
	for _, c := range []*runtimeapi.PodSandboxConfig{valid(), {}, {Metadata: &runtimeapi.PodSandboxMetadata{Name: "\x00/../..", Namespace: "n", Uid: "u"}, Hostname: "a b"}} {
		data, err := proto.Marshal(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		config := &runtimeapi.PodSandboxConfig{}
		if proto.Unmarshal(data, config) != nil {
			return
		}
		order, err := orderOf(config, "")
		if invalid := validate(config); invalid != nil || err != nil {
			for _, err := range []error{invalid, err} {
				if err != nil && strings.Contains(err.Error(), "\n") {
					t.Errorf("the error has more than one line: %q", err)
				}
			}
			return
		}
		s := New(discard(t))
		e := s.newEntry(fuzzID, config, &record{Order: order, CgroupOfUID: true})
		e.Rec.Attachment = e.attachment()
		st := e.View()
		files := s.Files(st)
		for _, path := range []string{files.IPC, files.UTS, files.Hosts, files.ResolvConf, files.Hostname} {
			if path != "" && !strings.HasPrefix(path, "/nowhere/sandboxes/"+fuzzID+"/") {
				t.Errorf("a file of the sandbox is at %s", path)
			}
		}
		if cgroup := s.Cgroup(st); !filepath.IsAbs(cgroup) || filepath.Clean(cgroup) != cgroup {
			t.Errorf("the cgroup is %q", cgroup)
		}
		for _, p := range st.Attachment.Ports {
			if p.HostPort == 0 || p.Protocol == "" {
				t.Errorf("the port mapping %+v is incomplete", p)
			}
		}
	})
}

// FuzzRecord: every record is loaded or set aside.
func FuzzRecord(f *testing.F) {
	config, err := proto.Marshal(valid())
	if err != nil {
		f.Fatal(err)
	}
	for _, rec := range []string{
		`{"state":"ready","boot":"this","attachment":{"netns":"/run/netns/x","sandbox":"` + fuzzID + `"}}`,
		`{"state":"killing","boot":"other"}`, `{"state":"no such state"}`, `{}`, `[]`, `null`, `{"state":1}`, `{"attached":[{}]}`, "",
	} {
		f.Add([]byte(rec), config)
	}
	f.Fuzz(func(t *testing.T, rec, config []byte) {
		cfg := discard(t)
		for key, value := range map[string][]byte{"sandbox/" + fuzzID: rec, "sandbox-config/" + fuzzID: config, "sandbox/../../etc": rec} {
			if err := cfg.Journal.Put(key, value); err != nil {
				t.Fatal(err)
			}
		}
		s := New(cfg)
		bad := s.Load()
		if len(bad)+len(s.List()) != 2 {
			t.Fatalf("of two records %d are loaded and %d set aside: %v", len(s.List()), len(bad), bad)
		}
		for _, st := range s.List() {
			if !pod.ValidID(st.ID) {
				t.Errorf("a sandbox has the ID %q", st.ID)
			}
		}
		_ = s.Attachments()
	})
}
