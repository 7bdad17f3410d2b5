package podplan

import "testing"

// A pod that was stopped and is told to run again begins anew: how its
// containers ended when it was stopped is not how it ended.
func TestRunAgain(t *testing.T) {
	t.Parallel()
	again := func(s *Spec, _ *Observed) { s.FirstAttempt = 1 }
	for _, c := range []planCase{
		{name: "Never", policy: "Never", containers: "a", observed: "sb0:stopped a.0:exit=143@5", now: 9, change: again, actions: "sandbox+1", status: "Pending(ContainerCreating) a=Waiting/ContainerCreating"},
		{name: "Never, completed", policy: "Never", containers: "a", observed: "sb0:stopped a.0:exit=0@5", now: 9, change: again, actions: "sandbox+1"},
		{name: "OnFailure, completed", policy: "OnFailure", containers: "a", observed: "sb0:stopped a.0:exit=0@5", now: 9, change: again, actions: "sandbox+1"},
		{name: "counts on", policy: "Never", containers: "a", observed: "sb0:stopped a.0:exit=143@5 sb1", now: 9, change: again, actions: "start:a.1@sb1"},
		{name: "ends again", policy: "Never", containers: "a", observed: "sb0:stopped a.0:exit=143@5 sb1 a.1:exit=0@9", now: 9, change: again, actions: "stop:sb1", status: "Succeeded(Completed) a=Terminated/Completed"},
		{name: "its new sandbox is lost", policy: "Never", containers: "a", observed: "sb0:stopped a.0:exit=143@5 sb1:stopped", now: 9, change: again, actions: "sandbox+2"},
		{name: "init runs again", policy: "Never", containers: "i:x a", observed: "sb0:stopped x.0:exit=1@5 sb1", now: 9, change: again, actions: "start:x.1@sb1"},
		// The stop that was asked for before comes to its end first.
		{name: "still running", containers: "a", observed: "sb0 a.0:run", now: 9, change: again, actions: "stop:a.0/30s"},
		{name: "still attached", containers: "a", observed: "sb0 a.0:exit=0@5", now: 9, change: again, actions: "stop:sb0"},
		{name: "one was being made", containers: "a", observed: "sb1", now: 9, change: again, actions: "start:a.0@sb1"},
	} {
		c.check(t)
	}
}
