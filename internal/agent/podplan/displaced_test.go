package podplan

import "testing"

// TestDisplaced checks that a pod says that its address isn't the node's any more, and that it gets
// another sandbox once that must be replaced. With restartPolicy Never, it has failed then.
func TestDisplaced(t *testing.T) {
	t.Parallel()
	displaced := func(_ *Spec, o *Observed) { o.Sandboxes[0].Displaced = "its address is another's" }
	for _, c := range []planCase{
		{name: "marked", containers: "a", observed: "sb0 a.0:run", change: displaced, status: "Running(AddressLost) ready a=Running"},
		{name: "a container's problem comes first", containers: "a", observed: "sb0 a.0:exit=1@5 a.1:exit=1@8", now: 9, change: displaced, next: 18, status: "Running(CrashLoopBackOff) a=Waiting/CrashLoopBackOff"},
		{name: "to be replaced", containers: "a", observed: "sb0:lost a.0:run", change: displaced, actions: "stop:a.0/30s", status: "Running(AddressLost) a=Running"},
		{name: "its containers have ended", containers: "a", observed: "sb0:lost a.0:exit=143@5", now: 6, change: displaced, actions: "stop:sb0"},
		{name: "replaced", containers: "a", observed: "sb0:stopped a.0:exit=143@5", now: 6, change: displaced, actions: "sandbox+1"},
		{name: "Never", policy: "Never", containers: "a", observed: "sb0:lost a.0:run", change: displaced, actions: "stop:a.0/30s"},
		{name: "Never, ended", policy: "Never", containers: "a", observed: "sb0:stopped a.0:exit=143@5", now: 6, change: displaced, status: "Failed(Error) a=Terminated/Error"},
	} {
		c.check(t)
	}
}
