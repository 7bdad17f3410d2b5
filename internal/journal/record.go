package journal

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
)

// A journal on disk is a header followed by records, back to back:
//
//	marker  4 bytes  "\xd5Hk\n"
//	length  4 bytes  of the body, little endian
//	sum     4 bytes  CRC-32C of length and body, little endian
//	body    op (1 byte), length of the key (uvarint), key, value
//
// By the marker a reader finds the next record after a damaged one.
const (
	header       = "husk journal 1\n\x00"
	headerPrefix = "husk journal "
	marker       = "\xd5Hk\n"
	frameSize    = 12
	// maxBody is the largest length that a reader believes.
	maxBody = 16 << 20
)

const (
	opPut    = 1
	opDelete = 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// record is a decoded record. Its slices point into the buffer that it was decoded from.
type record struct {
	op    byte
	key   []byte
	value []byte
	size  int // on disk, including the frame
}

// appendRecord appends an encoded record to buf.
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

// parseRecord decodes the record at the start of data. It reports false unless that is whole and
// undamaged.
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

// scan calls yield for every whole record in data, in order, and damaged for every part that holds
// none.
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

// nextRecord returns the offset of the first whole record at or after from, or the length of data.
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

// sector is what a disk writes whole or not at all.
const sector = 512

// torn reports whether data, which holds no whole record and reaches from offset to the end of the
// file, is what a crash leaves of the last write: the beginning of one record, or a record of which
// sectors are missing, with or without the zeros of a file system that had made the file longer
// already. All else is damage, above all what is longer than one record.
func torn(data []byte, offset int64) bool {
	written := bytes.TrimRight(data, "\x00")
	if n := min(len(written), len(marker)); string(written[:n]) != marker[:n] {
		return false
	}
	if len(written) < frameSize {
		return true
	}
	length := int(binary.LittleEndian.Uint32(written[4:]))
	if length > maxBody || len(written) > frameSize+length || bytes.Contains(written[1:], []byte(marker)) {
		return false
	}
	if len(written) == frameSize+length {
		return hasHole(written, offset)
	}
	// A record that is whole but for its length is damaged.
	frame := bytes.Clone(written)
	binary.LittleEndian.PutUint32(frame[4:], uint32(len(frame)-frameSize))
	return checksum(frame) != binary.LittleEndian.Uint32(frame[8:])
}

// hasHole reports whether a sector of data, which is at offset in the file, was never written.
func hasHole(data []byte, offset int64) bool {
	for len(data) > 0 {
		n := min(sector-int(offset%sector), len(data))
		if len(bytes.Trim(data[:n], "\x00")) == 0 {
			return true
		}
		data, offset = data[n:], offset+int64(n)
	}
	return false
}
