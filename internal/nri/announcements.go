package nri

import "sync"

// announcements holds the IDs of the pods and containers that plugins know.
type announcements struct {
	mu      sync.Mutex
	stopped map[string]bool // whether it was reported as stopped, by ID
}

// add records that plugins know id.
func (a *announcements) add(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopped[id] = false
}

// markStopped records that id is reported as stopped. It returns false if that was done, or plugins
// don't know id.
func (a *announcements) markStopped(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	stopped, known := a.stopped[id]
	if known {
		a.stopped[id] = true
	}
	return known && !stopped
}

// forget records that id is reported as removed. It returns false if plugins don't know id.
func (a *announcements) forget(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, known := a.stopped[id]
	delete(a.stopped, id)
	return known
}

// lookup reports whether plugins know id, and whether as stopped.
func (a *announcements) lookup(id string) (known, stopped bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	stopped, known = a.stopped[id]
	return known, stopped
}
