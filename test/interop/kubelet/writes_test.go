package kubelet

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/huskd/husk/test/node"
)

// written is the number of pods whose writes are counted.
const written = 10

const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, verbs: [create, update, patch, delete], resources: [{group: "", resources: [pods, pods/status, events]}]}
- {level: None}
`

// TestWrites counts what a node writes to the API server in the lives of simple pods, with huskd as
// the node and with a kubelet: huskd must not cost the API server more.
func TestWrites(t *testing.T) {
	writes := map[string]int{}
	t.Run("huskd", func(t *testing.T) {
		o := huskNode{newCluster(t)}
		o.audit()
		o.huskd.Stop()
		o.Must("mkdir", "-p", o.Dir+"/manifests")
		o.startNode()
		o.awaitNodeReady()
		writes["huskd"] = o.countWrites("huskd/")
		o.end()
	})
	t.Run("kubelet", func(t *testing.T) {
		c := newCluster(t)
		c.audit()
		c.join()
		c.awaitNodeReady()
		writes["kubelet"] = c.countWrites("kubelet/")
		c.end()
	})
	if huskd, kubelet := writes["huskd"], writes["kubelet"]; huskd == 0 || kubelet == 0 || huskd >= kubelet {
		t.Errorf("%d pods cost %d writes with huskd and %d with a kubelet", written, huskd, kubelet)
	}
}

// audit restarts the API server with a log of the writes about pods.
func (c *cluster) audit() {
	c.t.Helper()
	for _, p := range c.control {
		p.kill()
	}
	c.flags = append(c.flags, "--audit-policy-file", c.write("audit.yaml", auditPolicy), "--audit-log-path", c.Dir+"/audit.log")
	c.startControlPlane()
}

// countWrites runs pods, deletes them, and returns how many writes the client with that user agent
// made about them.
func (c *cluster) countWrites(agent string) int {
	c.t.Helper()
	pods := c.api.CoreV1().Pods("default")
	name := func(i int) string { return fmt.Sprintf("written-%02d", i) }
	for i := range written {
		c.create(simple(name(i), "", `command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done"]`))
	}
	for i := range written {
		c.await(name(i), ready)
	}
	for i := range written {
		p, err := pods.Get(c.t.Context(), name(i), metav1.GetOptions{})
		c.must(err)
		c.must(pods.Delete(c.t.Context(), p.Name, metav1.DeleteOptions{}))
	}
	node.Eventually(c.t, 2*time.Minute, func() string {
		list, err := pods.List(c.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		if len(list.Items) > 0 {
			return fmt.Sprintf("%d pods are left", len(list.Items))
		}
		return ""
	})
	node.Eventually(c.t, time.Minute, func() string {
		list, err := c.api.CoreV1().Events("default").List(c.t.Context(), metav1.ListOptions{FieldSelector: "reason=Killing"})
		if err != nil {
			return err.Error()
		}
		if len(list.Items) < written {
			return fmt.Sprintf("only %d pods have the event of their end", len(list.Items))
		}
		return ""
	})
	kinds, total := c.writes(agent), 0
	for _, n := range kinds {
		total += n
	}
	c.t.Logf("%.1f writes per pod: %v", float64(total)/written, kinds)
	return total
}

// writes returns the successful writes of a client by verb and resource.
func (c *cluster) writes(agent string) map[string]int {
	c.t.Helper()
	f, err := os.Open(c.Dir + "/audit.log")
	c.must(err)
	defer f.Close()
	out := map[string]int{}
	lines := bufio.NewScanner(f)
	for lines.Buffer(nil, 1<<20); lines.Scan(); {
		var e struct {
			Verb, UserAgent string
			ObjectRef       struct{ Resource, Subresource, Namespace, Name string }
			ResponseStatus  struct{ Code int }
		}
		if json.Unmarshal(lines.Bytes(), &e) != nil || !strings.HasPrefix(e.UserAgent, agent) || e.ResponseStatus.Code >= 300 || !strings.HasPrefix(e.ObjectRef.Name, "written-") {
			continue
		}
		out[strings.TrimSpace(e.Verb+" "+e.ObjectRef.Resource+" "+e.ObjectRef.Subresource)]++
	}
	c.must(lines.Err())
	return out
}
