package journal

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"
)

// Message is a pointer to M that is a protobuf message.
type Message[M any] interface {
	*M
	proto.Message
}

// Configured is a table each of whose records has beside it the message that it
// was made from. The message never changes, so it is written once, under a key
// of its own.
type Configured[T any, M any, P Message[M]] struct {
	records Table[T]
	configs string // prefix of the messages' keys
}

// NewConfigured returns the table of j whose records are under name and whose
// messages under name-config.
func NewConfigured[T any, M any, P Message[M]](j *Journal, name string) Configured[T, M, P] {
	return Configured[T, M, P]{NewTable[T](j, name), name + "-config/"}
}

// Create records v with its config under id, or neither of them.
func (c Configured[T, M, P]) Create(id string, config P, v T) error {
	data, err := proto.Marshal(config)
	if err != nil {
		return fmt.Errorf("encode config: %w", err)
	}
	if err := c.records.journal.Put(c.configs+id, data); err != nil {
		return err
	}
	if err := c.records.Put(id, v); err != nil {
		return errors.Join(err, c.records.journal.Delete(c.configs+id))
	}
	return nil
}

// Put records v under id, whose config is there.
func (c Configured[T, M, P]) Put(id string, v T) error { return c.records.Put(id, v) }

// Unwind records v under id as Journal.Unwind does.
func (c Configured[T, M, P]) Unwind(id string, v T) error { return c.records.Unwind(id, v) }

// Delete removes the record under id and its config, if they are there.
func (c Configured[T, M, P]) Delete(id string) error {
	return errors.Join(c.records.Delete(id), c.records.journal.Delete(c.configs+id))
}

// Load calls yield with every record and its config. One that can't be read, or
// that yield refuses, is set aside as Table.Load does; a config without a record
// is removed.
func (c Configured[T, M, P]) Load(yield func(id string, config P, v T) error) []error {
	served := map[string]bool{}
	bad := c.records.Load(func(id string, v T) error {
		data, ok := c.records.journal.Get(c.configs + id)
		config := P(new(M))
		if err := proto.Unmarshal(data, config); err != nil || !ok {
			return errors.Join(fmt.Errorf("its config can't be read (present: %v)", ok), err)
		}
		if err := yield(id, config, v); err != nil {
			return err
		}
		served[id] = true
		return nil
	})
	for key := range c.records.journal.All(c.configs) {
		if !served[key[len(c.configs):]] {
			_ = c.records.journal.Delete(key) // its record was not written, or is set aside
		}
	}
	return bad
}
