package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/pod"
)

// crashEnv is the environment variable with the life of a process to be killed.
const crashEnv = "HUSK_CNI_CRASH"

// life is what a process to be killed does.
type life struct {
	Config     Config
	Journal    string
	Attachment pod.Attachment
	Detach     bool
	// Pairs, if set, is a file. The process attaches and detaches in each of Netns in a
	// loop and appends a byte to the file for each pair.
	Pairs string
	Netns []string
}

// live runs the life of crashEnv.
func live() int {
	var l life
	if err := json.Unmarshal([]byte(os.Getenv(crashEnv)), &l); err != nil {
		fmt.Println(err)
		return 1
	}
	_ = os.Unsetenv(crashEnv)
	j, _, err := journal.Open(l.Journal)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	l.Config.Journal, l.Config.Builtin, l.Config.Log = j, &builtin{}, slog.Default()
	h, _ := New(l.Config)
	ctx := context.Background()
	err = h.Reconcile(ctx, nil)
	if l.Pairs != "" && err == nil {
		return churn(h, l)
	}
	if err == nil {
		_, err = h.Attach(ctx, l.Attachment)
	}
	if err == nil && l.Detach {
		err = h.Detach(ctx, l.Attachment)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	time.Sleep(time.Hour) // until it is killed
	return 0
}

// churn attaches and detaches concurrently until it is killed.
func churn(h *Host, l life) int {
	for len(h.Attachments()) > 0 { // debts of the previous process may use the same namespaces
		time.Sleep(5 * time.Millisecond)
	}
	pairs, err := os.OpenFile(l.Pairs, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	var wg sync.WaitGroup
	for _, ns := range l.Netns {
		wg.Go(func() {
			for {
				a := l.Attachment
				a.Sandbox, a.Netns = pod.NewID(), ns
				_, _ = h.Attach(context.Background(), a) // fails if its plugin is killed
				_ = h.Detach(context.Background(), a)
				for len(h.of(a.Sandbox)) > 0 {
					time.Sleep(5 * time.Millisecond)
				}
				_, _ = pairs.Write([]byte{'x'})
			}
		})
	}
	wg.Wait()
	return 0
}

// TestKilledAtRandom runs pairs of ADD and DEL, 16 concurrently, while plugins and huskd are
// killed at random. At the end nothing is left.
func TestKilledAtRandom(t *testing.T) {
	const parallel = 16
	pairs := 1000
	if testing.Short() {
		pairs = 100
	}
	l := newLab(t)
	l.conf("10-web.conflist", `{"cniVersion":"1.0.0","name":"web","plugins":[{"type":"ptp",`+hostLocal+`}]}`)
	cfg := l.config()
	cfg.Builtin, cfg.Log = nil, nil
	a := life{Config: cfg, Journal: filepath.Join(l.dir, "journal"), Attachment: l.pod(), Pairs: filepath.Join(l.dir, "pairs")}
	for range parallel {
		a.Netns = append(a.Netns, l.pod().Netns)
	}
	data, err := json.Marshal(a)
	must(t, err)
	done, lives, killed := 0, 0, 0
	for deadline := time.Now().Add(5 * time.Minute); done < pairs; lives++ {
		if time.Now().After(deadline) {
			t.Fatalf("only %d pairs in %d lives", done, lives)
		}
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), crashEnv+"="+string(data))
		cmd.Stdout, cmd.Stderr = testLog{t}, &l.log
		cmd.WaitDelay = time.Second
		must(t, cmd.Start())
		for want := done + rand.N(pairs/5); done <= want && time.Now().Before(deadline); time.Sleep(rand.N(100 * time.Millisecond)) {
			if plugins := children(cmd.Process.Pid); rand.N(5) == 0 && len(plugins) > 0 {
				_ = syscall.Kill(plugins[rand.N(len(plugins))], syscall.SIGKILL)
				killed++
			}
			if info, err := os.Stat(a.Pairs); err == nil {
				done = int(info.Size())
			}
		}
		must(t, cmd.Process.Kill())
		_ = cmd.Wait()
	}
	h, _ := l.host(nil)
	l.owed(h, 0)
	l.nothingLeft()
	t.Logf("%d pairs in %d lives, %d plugins killed", done, lives, killed)
}

// children returns the processes that any thread of a process has started.
func children(pid int) (list []int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, f := range files {
		data, _ := os.ReadFile(f)
		for field := range strings.FieldsSeq(string(data)) {
			if child, err := strconv.Atoi(field); err == nil {
				list = append(list, child)
			}
		}
	}
	return list
}

// crash runs a life in another process and kills it once a plugin has created file.
func (l *lab) crash(a pod.Attachment, detach bool, file string) {
	l.t.Helper()
	cfg := l.config()
	cfg.Builtin, cfg.Log = nil, nil
	data, err := json.Marshal(life{Config: cfg, Journal: filepath.Join(l.dir, "journal"), Attachment: a, Detach: detach})
	must(l.t, err)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), crashEnv+"="+string(data))
	cmd.Stdout, cmd.Stderr = testLog{l.t}, testLog{l.t}
	cmd.WaitDelay = time.Second
	must(l.t, cmd.Start())
	l.eventually(func() string {
		if _, err := os.Stat(file); err != nil {
			return "the plugin is not reached"
		}
		return ""
	})
	must(l.t, cmd.Process.Kill())
	_ = cmd.Wait()
}

func TestMain(m *testing.M) {
	if os.Getenv(crashEnv) != "" {
		os.Exit(live())
	}
	verify(m)
}
