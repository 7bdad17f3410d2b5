package journal

import (
	"encoding/json"
	"fmt"
)

// Table is the part of a journal whose keys begin with a prefix and whose values are JSON of one
// type.
type Table[T any] struct {
	journal *Journal
	prefix  string
}

// asidePrefix begins the keys of records that were set aside, as their owner could not read them.
const asidePrefix = "aside/"

// Aside returns the IDs of the records that Load has set aside, now or at an earlier start.
func (t Table[T]) Aside() []string {
	keys := t.journal.keys(asidePrefix + t.prefix)
	for i := range keys {
		keys[i] = keys[i][len(asidePrefix+t.prefix):]
	}
	return keys
}

// DeleteAside removes what was set aside of the record under id, if there is anything.
func (t Table[T]) DeleteAside(id string) error {
	return t.journal.Delete(asidePrefix + t.prefix + id)
}

// NewTable returns the table of j whose keys begin with name and a slash.
func NewTable[T any](j *Journal, name string) Table[T] {
	return Table[T]{j, name + "/"}
}

// Put sets the record under id.
func (t Table[T]) Put(id string, v T) error { return t.put(id, v, t.journal.Put) }

// PutUsingReserve sets the record under id as Journal.PutUsingReserve does.
func (t Table[T]) PutUsingReserve(id string, v T) error {
	return t.put(id, v, t.journal.PutUsingReserve)
}

func (t Table[T]) put(id string, v T, write func(string, []byte) error) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("journal: encode %s%s: %w", t.prefix, id, err)
	}
	return write(t.prefix+id, data)
}

// Delete removes the record under id, if there is one.
func (t Table[T]) Delete(id string) error { return t.journal.Delete(t.prefix + id) }

// Load calls yield for every record. A record that isn't JSON of the type, or that yield refuses,
// is moved to another key, and its error is returned.
func (t Table[T]) Load(yield func(id string, v T) error) []error {
	var bad []error
	for key, data := range t.journal.All(t.prefix) {
		id := key[len(t.prefix):]
		var v T
		err := json.Unmarshal(data, &v)
		if err == nil {
			err = yield(id, v)
		}
		if err == nil {
			continue
		}
		bad = append(bad, fmt.Errorf("record %s is set aside: %w", key, err))
		if t.journal.PutUsingReserve(asidePrefix+key, data) == nil {
			_ = t.journal.Delete(key)
		}
	}
	return bad
}
