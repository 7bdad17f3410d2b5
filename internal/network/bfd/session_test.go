package bfd

import (
	"testing"
	"time"
)

// TestSession has two sessions speak with each other until both are up, and ends one in each way.
func TestSession(t *testing.T) {
	cfg := Config{Interval: 200 * time.Millisecond, Multiplier: 3}
	now := time.Unix(1000, 0)
	pass := func(from, to *session) (failure string) {
		p, err := decode(from.packet(false).encode())
		if err != nil {
			t.Fatal(err)
		}
		_, failure = to.receive(p, now)
		return failure
	}
	begin := func() (a, b *session) {
		a, b = newSession(cfg, 1), newSession(cfg, 2)
		for range 3 {
			if pass(a, b)+pass(b, a) != "" {
				t.Error("it failed while it came up")
			}
		}
		if a.state != up || b.state != up {
			t.Fatalf("states %d and %d, want both up", a.state, b.state)
		}
		return a, b
	}

	a, _ := begin()
	if got := a.deadline().Sub(now); got != 3*time.Second && got != 600*time.Millisecond {
		t.Errorf("it expires after %v", got)
	}
	if a.expire() == "" || a.state != down {
		t.Errorf("without packets, its state is %d, want a failure", a.state)
	}
	if a.expire() != "" {
		t.Error("it fails twice")
	}

	a, _ = begin()
	restarted := newSession(cfg, 3)
	if pass(restarted, a) == "" {
		t.Error("a peer that was started again isn't a failure")
	}
	pass(a, restarted)
	pass(restarted, a)
	if pass(a, restarted); a.state != up || restarted.state != up {
		t.Errorf("after a restart, the states are %d and %d", a.state, restarted.state)
	}

	a, b := begin()
	b.set(adminDown, diagAdminDown)
	for range 3 {
		if why := pass(b, a); why != "" || a.state != down {
			t.Errorf("a session that the peer has ended: %q, state %d", why, a.state)
		}
	}
	if why := a.expire(); why != "" {
		t.Errorf("a session that the peer has ended fails: %q", why)
	}
	b.set(down, diagNone)
	for range 3 {
		pass(b, a)
		pass(a, b)
	}
	if a.state != up || b.state != up || a.expire() == "" {
		t.Errorf("when the peer wants it again, the states are %d and %d, and then it fails", a.state, b.state)
	}
}
