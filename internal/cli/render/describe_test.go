package render

import (
	"strings"
	"testing"
	"time"
)

// TestDescription checks what husk describe says of containers that have failed, of what a pod
// waits for, and of a sandbox without a network.
func TestDescription(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	document := func(rest string) string {
		return `{"Name": "default/web", "Phase": "Pending", "Reason": "CrashLoopBackOff", "Created": "2026-01-01T11:59:00Z", ` + rest + `}`
	}
	for _, c := range []struct{ document, want string }{
		{document(`"WaitsFor": ["a host port that is in use", "the next start of container c"]`), "Waits for:       a host port that is in use; the next start of container c\n"},
		{document(`"NetworkSettings": {}`), "Network:         not attached\n"},
		{document(`"NetworkSettings": {"SandboxKey": "/run/netns/x"}, "Sandbox": {"HostLink": "hk1", "MTU": 1500}`), "Network:         mtu 1500, on the node hk1, namespace /run/netns/x\n"},
		{document(`"NetworkSettings": {"SandboxKey": "/run/netns/x"}, "IPs": ["10.0.0.1"]`), "Network:         10.0.0.1, namespace /run/netns/x\n"},
		{document(`"HostNetwork": true`), "Network:         the node's\n"},
		{document(`"Containers": [{"Name": "c", "State": "Terminated", "Reason": "Error", "OOMKilled": true, "ExitCode": 137, "StartedAt": "2026-01-01T11:59:48Z", "FinishedAt": "2026-01-01T11:59:50Z"}]`),
			"  State:         Terminated Error 10s ago, exit code 137, after 2.00 s: the kernel killed it because of its memory limit\n"},
		{document(`"Containers": [{"Name": "c", "State": "Running", "StartedAt": "2026-01-01T11:59:55Z", "Pid": 7, "RestartCount": 1,
			"LastRun": {"Reason": "Error", "Message": "no database", "ExitCode": 3, "StartedAt": "2026-01-01T11:59:49Z", "FinishedAt": "2026-01-01T11:59:50Z"}}]`),
			"  State:         Running for 5s, process 7\n  Last state:    Terminated Error 10s ago, exit code 3, after 1.00 s\n  Last message:  no database\n"},
		{document(`"Manifest": {"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}}`), "Volume v: claim data\n"},
	} {
		text, err := Description([]byte(c.document), nil, now)
		if err != nil || !strings.Contains(text, c.want) {
			t.Errorf("%v, want %s in\n%s", err, c.want, text)
		}
	}
}
