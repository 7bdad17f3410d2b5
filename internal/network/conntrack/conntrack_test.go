package conntrack

import (
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// FuzzAnswers: nothing that comes from a socket may crash.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte{})
	entry := nl.NewRtAttr(ctaTupleOrig|unix.NLA_F_NESTED, nil)
	entry.AddRtAttr(ctaTupleIP|unix.NLA_F_NESTED, nil).AddRtAttr(1, []byte{1, 2, 3, 4})
	entry.AddRtAttr(ctaTupleProto|unix.NLA_F_NESTED, nil).AddRtAttr(ctaProtoNum, []byte{17})
	f.Add(append([]byte{2, 0, 0, 0}, entry.Serialize()...))
	f.Fuzz(func(_ *testing.T, data []byte) {
		_ = deletion(data, func(_, _ tuple) bool { return true })
		_ = parseTuple(data)
	})
}
