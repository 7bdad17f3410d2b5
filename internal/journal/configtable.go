package journal

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"
)

// ConfigTable is a table whose records each belong to a config, the protobuf message that the
// record was made from. A config never changes, so it is written once, under a key of its own.
type ConfigTable[T any, C proto.Message] struct {
	records Table[T]
	configs string // prefix of the configs' keys
}

// NewConfigTable returns the table of j whose records are under name and whose configs are under
// name-config.
func NewConfigTable[T any, C proto.Message](j *Journal, name string) ConfigTable[T, C] {
	return ConfigTable[T, C]{NewTable[T](j, name), name + "-config/"}
}

// Create records v and its config under id, or neither of them.
func (c ConfigTable[T, C]) Create(id string, config C, v T) error {
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

// Put replaces the record under id. Its config stays.
func (c ConfigTable[T, C]) Put(id string, v T) error { return c.records.Put(id, v) }

// PutUsingReserve replaces the record under id as Journal.PutUsingReserve does.
func (c ConfigTable[T, C]) PutUsingReserve(id string, v T) error {
	return c.records.PutUsingReserve(id, v)
}

// Delete removes the record under id and its config, if they exist.
func (c ConfigTable[T, C]) Delete(id string) error {
	return errors.Join(c.records.Delete(id), c.records.journal.Delete(c.configs+id))
}

// Load calls yield with every record and its config. A record that can't be read, or that yield
// refuses, is set aside as by Table.Load. A config without a record is removed.
func (c ConfigTable[T, C]) Load(yield func(id string, config C, v T) error) []error {
	loaded := map[string]bool{}
	bad := c.records.Load(func(id string, v T) error {
		data, ok := c.records.journal.Get(c.configs + id)
		var none C
		config := none.ProtoReflect().New().Interface().(C)
		if err := proto.Unmarshal(data, config); err != nil || !ok {
			return errors.Join(fmt.Errorf("its config can't be read (present: %v)", ok), err)
		}
		if err := yield(id, config, v); err != nil {
			return err
		}
		loaded[id] = true
		return nil
	})
	for key := range c.records.journal.All(c.configs) {
		if !loaded[key[len(c.configs):]] {
			_ = c.records.journal.Delete(key) // its record was never written, or is set aside
		}
	}
	return bad
}
