package stream

import (
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// A token is taken at once by who asked for it.
const (
	ticketAge  = time.Minute
	maxTickets = 1000
)

// tickets are the sessions that were asked for and not yet begun. The zero
// value has none.
type tickets struct {
	mu      sync.Mutex
	waiting map[string]ticket // by kind and token
}

type ticket struct {
	session
	until time.Time
}

// issue returns a token for a session.
func (t *tickets) issue(kind string, s session) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if t.waiting == nil {
		t.waiting = map[string]ticket{}
	}
	for key, old := range t.waiting {
		if now.After(old.until) {
			delete(t.waiting, key)
		}
	}
	if len(t.waiting) >= maxTickets {
		return "", errdefs.ErrResourceExhausted.WithMessage(fmt.Sprintf("%d sessions were asked for within a minute and not begun: try again later", maxTickets))
	}
	token := rand.Text()
	t.waiting[kind+"/"+token] = ticket{s, now.Add(ticketAge)}
	return token, nil
}

// take returns the session of a token, once.
func (t *tickets) take(kind, token string) (session, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := kind + "/" + token
	found, ok := t.waiting[key]
	delete(t.waiting, key)
	return found.session, ok && time.Now().Before(found.until)
}
