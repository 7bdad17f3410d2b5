package cri

import (
	"maps"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// encodedList keeps the encoded elements of a list from call to call. kubelet lists all sandboxes
// and containers each second, and encoding took most of the time. An element is encoded again when
// its key has changed, which has all of it that can change.
type encodedList[K comparable] struct {
	mu   sync.Mutex
	byID map[string]encodedElement[K]
}

type encodedElement[K comparable] struct {
	key K
	raw []byte
}

// listField is the number of the field with the elements in CRI's responses.
const listField = 1

// maxOthers is how many elements are kept that a list lacks. They may exist no more: a client that
// only asks for lists with filters doesn't tell.
const maxOthers = 1000

// put makes n elements the list of response, which has no other field. element returns the ID, the
// key and the message of one. If they are all elements that there are, others are forgotten. Only
// the encoded form of response is complete: its Go fields are empty.
func (l *encodedList[K]) put(response proto.Message, n int, all bool, element func(i int) (string, K, func() proto.Message)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	size, parts, next := 0, make([][]byte, n), make(map[string]encodedElement[K], n)
	for i := range n {
		id, key, message := element(i)
		e, ok := l.byID[id]
		if !ok || e.key != key {
			raw, err := proto.Marshal(message())
			if err != nil {
				return err
			}
			e = encodedElement[K]{key, protowire.AppendBytes(protowire.AppendTag(nil, listField, protowire.BytesType), raw)}
		}
		next[id], parts[i] = e, e.raw
		size += len(e.raw)
	}
	if all || l.byID == nil || len(l.byID) > len(next)+maxOthers {
		l.byID = next
	} else {
		maps.Copy(l.byID, next)
	}
	out := make([]byte, 0, size)
	for _, p := range parts {
		out = append(out, p...)
	}
	response.ProtoReflect().SetUnknown(out)
	return nil
}
