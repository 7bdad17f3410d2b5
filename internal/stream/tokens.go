package stream

import (
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

const (
	// tokenAge is enough: clients use a token at once.
	tokenAge  = time.Minute
	maxTokens = 1000
)

// tokens holds the requested sessions that haven't started yet. The zero value is empty.
type tokens struct {
	mu      sync.Mutex
	pending map[string]pendingSession // by kind and token
}

type pendingSession struct {
	session
	expires time.Time
}

// issue returns a token for a session.
func (t *tokens) issue(kind string, s session) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if t.pending == nil {
		t.pending = map[string]pendingSession{}
	}
	for key, old := range t.pending {
		if now.After(old.expires) {
			delete(t.pending, key)
		}
	}
	if len(t.pending) >= maxTokens {
		return "", errdefs.ErrResourceExhausted.WithMessage(fmt.Sprintf("%d sessions were requested within a minute and not started: try again later", maxTokens))
	}
	token := rand.Text()
	t.pending[kind+"/"+token] = pendingSession{s, now.Add(tokenAge)}
	return token, nil
}

// redeem returns the session of a token, once.
func (t *tokens) redeem(kind, token string) (session, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := kind + "/" + token
	found, ok := t.pending[key]
	delete(t.pending, key)
	return found.session, ok && time.Now().Before(found.expires)
}
