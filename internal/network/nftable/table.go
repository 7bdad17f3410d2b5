package nftable

import (
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nlsock"
)

// From linux/netfilter/nf_tables.h: a table belongs to the socket that made it, and stays when that
// is closed.
const owner, persist = 0x2, 0x4

const accept = 1 // NF_ACCEPT of linux/netfilter.h

// batchSize is how long a transaction may be. It is sent as one message, and needs 50 to 100 bytes
// for each element.
const batchSize = 256 << 20

// Table is an inet table of the kernel's, and the socket that changes it.
type Table struct {
	Name string
	Conn *nlsock.Conn

	// Shared is whether others can change the table, as the kernel is older than 6.9: tables have
	// no owner there that outlives its socket.
	Shared bool

	sets uint32 // numbers the sets in a transaction
}

// Open opens the socket in the calling thread's network namespace. Nothing in the kernel changes.
func (t *Table) Open() (err error) {
	if t.Conn, err = nlsock.Dial(unix.NETLINK_NETFILTER); err != nil {
		return err
	}
	return t.Conn.Grow(batchSize)
}

// Close closes the socket. The table stays.
func (t *Table) Close() error {
	if t.Conn == nil {
		return nil
	}
	return t.Conn.Close()
}

// Wrap adds the table to an error, and the reason if another socket has it.
func (t *Table) Wrap(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, unix.EPERM) {
		err = errdefs.ErrFailedPrecondition.WithMessage("another process, which still runs, has it: end that first")
	}
	return fmt.Errorf("nftables table inet %s: %w", t.Name, err)
}

func (t *Table) flags() uint32 {
	if t.Shared {
		return 0
	}
	return owner | persist
}

// State is what the kernel says of a table.
type State struct {
	Exists bool
	flags  uint32
}

// Find asks the kernel for the table.
func (t *Table) Find() (s State, _ error) {
	get := t.Conn.Do(Request(unix.NFT_MSG_GETTABLE, 0, Attributes{}.Text(unix.NFTA_TABLE_NAME, t.Name)))[0]
	if errors.Is(get.Err, unix.ENOENT) {
		return s, nil
	}
	if get.Err != nil {
		return s, get.Err
	}
	s.Exists = true
	for typ, value := range Fields(get.Data) {
		if typ == unix.NFTA_TABLE_FLAGS {
			s.flags = ParseNumber(value)
		}
	}
	return s, nil
}

// Broken says what is wrong with the table itself. It is empty if nothing is.
func (t *Table) Broken(s State) string {
	switch {
	case !s.Exists:
		return "the table is missing"
	case s.flags|t.flags()&owner != t.flags(): // the kernel lists a table whose owner has ended without that flag
		return fmt.Sprintf("the table's flags are %#x, not %#x", s.flags, t.flags())
	}
	return ""
}

// Downgrade reports whether err came from a kernel older than 6.9. If so, the table is Shared from
// now on, and the caller tries again.
func (t *Table) Downgrade(s State, err error) bool {
	if t.Shared || s.flags != 0 || !errors.Is(err, unix.EOPNOTSUPP) {
		return false
	}
	t.Shared = true
	return true
}

// Adopt returns the messages that make the table this socket's, if it has been another's.
func (t *Table) Adopt(s State) []*nl.NetlinkRequest {
	if s.flags&persist == 0 {
		return nil
	}
	return []*nl.NetlinkRequest{t.New()}
}

// New returns the message that makes the table.
func (t *Table) New() *nl.NetlinkRequest {
	a := Attributes{}.Text(unix.NFTA_TABLE_NAME, t.Name).Number(unix.NFTA_TABLE_FLAGS, t.flags())
	return Request(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, a)
}

// Delete returns the message that deletes the table.
func (t *Table) Delete() *nl.NetlinkRequest {
	return Request(unix.NFT_MSG_DELTABLE, 0, Attributes{}.Text(unix.NFTA_TABLE_NAME, t.Name))
}
