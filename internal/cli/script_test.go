package cli

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/protobuf/encoding/protojson"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/huskdtest"
)

// TestScripts runs husk as a user does. Each script has its own huskd, which the script controls
// with the command "huskd".
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			h := huskdtest.New()
			socket := filepath.Join(env.WorkDir, "husk.sock")
			env.Setenv("HUSK_SOCKET", "unix://"+socket)
			env.Setenv("SOCKET", socket)
			env.Setenv("TERM", "xterm")
			env.Setenv("GORACE", os.Getenv("GORACE"))
			env.Values["huskd"] = h
			env.Defer(h.Close)
			return h.Listen(socket)
		},
		Condition: func(name string) (bool, error) {
			if name == "root" {
				return os.Geteuid() == 0, nil
			}
			return false, fmt.Errorf("unknown condition %s", name)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"huskd":   steer,
			"archive": makeArchive,
		},
	})
}

// steer is the command huskd of a script:
//
//	huskd stop                     stops it
//	huskd pods FILE                adds the pods of a ListPodsResponse
//	huskd images FILE              adds the images of a ListImagesResponse
//	huskd checks FILE              sets the checks of a DoctorResponse
//	huskd debts FILE               sets the debts of a ListAttachmentsResponse
//	huskd events FILE              adds events, one Event per line
//	huskd log POD/CONTAINER TIME out|err LINE...
func steer(ts *testscript.TestScript, _ bool, args []string) {
	h := ts.Value("huskd").(*huskdtest.Huskd)
	switch args[0] {
	case "stop":
		h.Close()
	case "pods":
		var list huskv1.ListPodsResponse
		ts.Check(protojson.Unmarshal(dated(ts, args[1]), &list))
		for _, p := range list.Pods {
			h.SetPod(p)
		}
	case "images":
		var list huskv1.ListImagesResponse
		ts.Check(protojson.Unmarshal(dated(ts, args[1]), &list))
		for _, i := range list.Images {
			h.AddImage(i)
		}
	case "checks":
		var list huskv1.DoctorResponse
		ts.Check(protojson.Unmarshal(dated(ts, args[1]), &list))
		h.SetChecks(list.Checks)
	case "debts":
		var list huskv1.ListAttachmentsResponse
		ts.Check(protojson.Unmarshal(dated(ts, args[1]), &list))
		h.SetDebts(list.Attachments)
	case "events":
		for line := range strings.Lines(string(dated(ts, args[1]))) {
			var e huskv1.Event
			ts.Check(protojson.Unmarshal([]byte(line), &e))
			h.AddEvent(&e)
		}
	case "log":
		at, err := time.Parse(time.RFC3339Nano, args[2])
		ts.Check(err)
		pod, container := filepath.Split(args[1])
		for i, line := range args[4:] {
			h.AddLog(filepath.Clean(pod), container, line, args[3] == "err", at.Add(time.Duration(i)*time.Second))
		}
	default:
		ts.Fatalf("unknown command huskd %s", args[0])
	}
}

// ago matches a placeholder for a Unix time in nanoseconds.
var ago = regexp.MustCompile(`"ago:([0-9a-z]+)"`)

// dated reads a file and replaces the placeholders for times.
func dated(ts *testscript.TestScript, file string) []byte {
	now := time.Now()
	return ago.ReplaceAllFunc([]byte(ts.ReadFile(file)), func(m []byte) []byte {
		d, err := time.ParseDuration(string(ago.FindSubmatch(m)[1]))
		ts.Check(err)
		return fmt.Appendf(nil, `"%d"`, now.Add(-d).UnixNano())
	})
}

// makeArchive is the command archive FILE REF BYTES of a script.
func makeArchive(ts *testscript.TestScript, _ bool, args []string) {
	size, err := strconv.Atoi(args[2])
	ts.Check(err)
	ts.Check(writeArchive(ts.MkAbs(args[0]), args[1], size))
}

// writeArchive writes a docker archive.
func writeArchive(file, ref string, size int) error {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, data := range map[string][]byte{
		"manifest.json": fmt.Appendf(nil, `[{"RepoTags":[%q]}]`, ref),
		"layer.tar":     make([]byte, size),
	} {
		if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(data)), Mode: 0o644}); err != nil {
			return err
		}
		if _, err := w.Write(data); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o600)
}
