package podplan

import "testing"

// TestRerun checks that a stopped pod that is told to run again starts from scratch. The exits of
// its containers before the stop don't count.
func TestRerun(t *testing.T) {
	t.Parallel()
	again := func(s *Spec, _ *Observed) { s.FirstAttempt = 1 }
	for _, c := range []planCase{
		{name: "Never", policy: "Never", containers: "a", observed: "sb0:stopped a.0:exit=143@5", now: 9, change: again, actions: "sandbox+1", status: "Pending(ContainerCreating) a=Waiting/ContainerCreating"},
		{name: "Never, completed", policy: "Never", containers: "a", observed: "sb0:stopped a.0:exit=0@5", now: 9, change: again, actions: "sandbox+1"},
		{name: "OnFailure, completed", policy: "OnFailure", containers: "a", observed: "sb0:stopped a.0:exit=0@5", now: 9, change: again, actions: "sandbox+1"},
		{name: "attempts continue", policy: "Never", containers: "a", observed: "sb0:stopped a.0:exit=143@5 sb1", now: 9, change: again, actions: "start:a.1@sb1"},
		{name: "ends again", policy: "Never", containers: "a", observed: "sb0:stopped a.0:exit=143@5 sb1 a.1:exit=0@9", now: 9, change: again, actions: "stop:sb1", status: "Succeeded(Completed) a=Terminated/Completed"},
		{name: "new sandbox is lost", policy: "Never", containers: "a", observed: "sb0:stopped a.0:exit=143@5 sb1:stopped", now: 9, change: again, actions: "sandbox+2"},
		{name: "init runs again", policy: "Never", containers: "i:x a", observed: "sb0:stopped x.0:exit=1@5 sb1", now: 9, change: again, actions: "start:x.1@sb1"},
		// The earlier stop completes first.
		{name: "still running", containers: "a", observed: "sb0 a.0:run", now: 9, change: again, actions: "stop:a.0/30s"},
		{name: "still attached", containers: "a", observed: "sb0 a.0:exit=0@5", now: 9, change: again, actions: "stop:sb0"},
		{name: "new sandbox was already created", containers: "a", observed: "sb1", now: 9, change: again, actions: "start:a.0@sb1"},
	} {
		c.check(t)
	}
}
