package journal

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
)

// On disk a journal is a header and then records, back to back:
//
//	marker  4 bytes  "\xd5Hk\n"
//	length  4 bytes  of the body, little endian
//	sum     4 bytes  CRC-32C of length and body, little endian
//	body    op (1 byte), length of the key (uvarint), key, value
//
// The marker lets a reader find the next record behind a damaged one.
const (
	header       = "husk journal 1\n\x00"
	headerPrefix = "husk journal "
	marker       = "\xd5Hk\n"
	frameSize    = 12
	// maxBody bounds what a damaged length can make a reader believe.
	maxBody = 16 << 20
)

const (
	opPut    = 1
	opDelete = 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// record is one decoded record. Its slices point into the buffer read.
type record struct {
	op    byte
	key   []byte
	value []byte
	size  int // on disk, frame included
}

// appendRecord encodes a record at the end of buf.
func appendRecord(buf []byte, op byte, key string, value []byte) []byte {
	start := len(buf)
	buf = append(buf, marker...)
	buf = append(buf, make([]byte, frameSize-len(marker))...)
	buf = append(buf, op)
	buf = binary.AppendUvarint(buf, uint64(len(key)))
	buf = append(buf, key...)
	buf = append(buf, value...)
	frame := buf[start:]
	binary.LittleEndian.PutUint32(frame[4:], uint32(len(frame)-frameSize))
	binary.LittleEndian.PutUint32(frame[8:], checksum(frame))
	return buf
}

func checksum(frame []byte) uint32 {
	sum := crc32.Update(0, castagnoli, frame[4:8])
	return crc32.Update(sum, castagnoli, frame[frameSize:])
}

// parseRecord decodes the record at the start of data, if there is a whole and
// undamaged one.
func parseRecord(data []byte) (record, bool) {
	if len(data) < frameSize || string(data[:4]) != marker {
		return record{}, false
	}
	length := int(binary.LittleEndian.Uint32(data[4:]))
	if length > maxBody || length > len(data)-frameSize {
		return record{}, false
	}
	frame := data[:frameSize+length]
	if checksum(frame) != binary.LittleEndian.Uint32(frame[8:]) {
		return record{}, false
	}
	body := frame[frameSize:]
	if len(body) == 0 || (body[0] != opPut && body[0] != opDelete) {
		return record{}, false
	}
	keyLen, n := binary.Uvarint(body[1:])
	if n <= 0 || keyLen > uint64(len(body)-1-n) {
		return record{}, false
	}
	rest := body[1+n:]
	return record{op: body[0], key: rest[:keyLen], value: rest[keyLen:], size: len(frame)}, true
}

// scan calls yield with every whole record of data and its offset, in order,
// and damaged with every stretch that holds none. A stretch that reaches the
// end of data is a torn tail: the last write before a crash.
func scan(data []byte, yield func(offset int, r record), damaged func(offset, length int)) {
	for at := 0; at < len(data); {
		if r, ok := parseRecord(data[at:]); ok {
			yield(at, r)
			at += r.size
			continue
		}
		next := nextRecord(data, at+1)
		damaged(at, next-at)
		at = next
	}
}

// nextRecord returns the offset of the first whole record at or behind from,
// or the length of data.
func nextRecord(data []byte, from int) int {
	for from < len(data) {
		i := bytes.Index(data[from:], []byte(marker))
		if i < 0 {
			break
		}
		if _, ok := parseRecord(data[from+i:]); ok {
			return from + i
		}
		from += i + 1
	}
	return len(data)
}
