package preflight

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// legacyFamily describes the tables of legacy iptables of one family. They are read by socket
// options, with the layout of linux/netfilter_ipv4/ip_tables.h and
// linux/netfilter_ipv6/ip6_tables.h.
type legacyFamily struct {
	command string
	names   string // file in /proc/net that lists the tables
	domain  int
	level   int
	entry   int // size of struct ipt_entry
	// Offsets in the entry: ifaces is that of the names iniface and outiface, 16 bytes each, which
	// their masks follow; offsets is that of target_offset and next_offset.
	ifaces, offsets int
}

var (
	legacy4 = legacyFamily{"iptables-legacy", "ip_tables_names", unix.AF_INET, unix.IPPROTO_IP, 112, 16, 88}
	legacy6 = legacyFamily{"ip6tables-legacy", "ip6_tables_names", unix.AF_INET6, unix.IPPROTO_IPV6, 168, 64, 140}
)

const (
	soGetInfo    = 64 // IPT_SO_GET_INFO and IP6T_SO_GET_INFO
	soGetEntries = 65
	tableName    = 32
	hooks        = 5
	forwardHook  = 2
	acceptCode   = -2 // -NF_ACCEPT - 1
	// Offsets in struct xt_entry_target.
	targetName = 2
	targetData = 32
)

// forwards reports whether the FORWARD chain accepts packets from and to the link, by its policy or
// by rules without other conditions.
func (f legacyFamily) forwards(link podLink) (bool, error) {
	table, err := f.read("filter")
	if table == nil || err != nil {
		return err == nil, err
	}
	chain, policy, err := f.forward(table)
	if err != nil {
		return false, fmt.Errorf("%s: read table filter: %w", f.command, err)
	}
	if policy == acceptCode {
		return true, nil
	}
	return f.accepts(chain, link, false) && f.accepts(chain, link, true), nil
}

func (f legacyFamily) firewall(link podLink) BlockingFirewall {
	name := link.name
	if link.open {
		name += "+"
	}
	return BlockingFirewall{
		Where: f.command + " table filter, chain FORWARD",
		Fix: []string{
			fmt.Sprintf("%s -I FORWARD -i %s -j ACCEPT", f.command, name),
			fmt.Sprintf("%s -I FORWARD -o %s -j ACCEPT", f.command, name),
		},
	}
}

// hasChain reports whether a table exists and has a chain of its user's.
func (f legacyFamily) hasChain(table, chain string) (bool, error) {
	t, err := f.read(table)
	if t == nil || err != nil {
		return false, err
	}
	return f.heads(t.entries, chain), nil
}

// heads reports whether one of the entries is the head of a user's chain. It has the target ERROR,
// whose data are the chain's name.
func (f legacyFamily) heads(entries []byte, chain string) bool {
	for len(entries) >= f.entry {
		next := int(binary.NativeEndian.Uint16(entries[f.offsets+2:]))
		if next < f.entry || next > len(entries) {
			return false
		}
		entry := entries[:next]
		entries = entries[next:]
		at := int(binary.NativeEndian.Uint16(entry[f.offsets:]))
		if len(entry) >= at+targetData && unix.ByteSliceToString(entry[at+targetName:at+targetData]) == "ERROR" && unix.ByteSliceToString(entry[at+targetData:]) == chain {
			return true
		}
	}
	return false
}

// legacyTable is a table of legacy iptables.
type legacyTable struct {
	begin, end [hooks]int // of the built-in chains; the end is the entry of the chain's policy
	entries    []byte
}

// read returns a table, or nil if there is none: asking for one would make the kernel create it.
func (f legacyFamily) read(name string) (*legacyTable, error) {
	names, err := os.ReadFile("/proc/thread-self/net/" + f.names)
	if errors.Is(err, os.ErrNotExist) || err == nil && !slices.Contains(strings.Fields(string(names)), name) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.command, err)
	}
	t, err := f.fetch(name)
	for tries := 0; tries < 10 && errors.Is(err, unix.EAGAIN); tries++ { // the table has just changed
		t, err = f.fetch(name)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: read table %s: %w", f.command, name, err)
	}
	return t, nil
}

func (f legacyFamily) fetch(name string) (*legacyTable, error) {
	fd, err := unix.Socket(f.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	// struct ipt_getinfo: name, valid_hooks, hook_entry[5], underflow[5], num_entries, size.
	info := make([]byte, tableName+4*(1+2*hooks+2))
	copy(info, name)
	if err := f.get(fd, soGetInfo, info); err != nil {
		return nil, err
	}
	word := func(i int) int { return int(binary.NativeEndian.Uint32(info[tableName+4*i:])) }
	t := &legacyTable{}
	for hook := range hooks {
		t.begin[hook], t.end[hook] = word(1+hook), word(1+hooks+hook)
	}
	size := word(1 + 2*hooks + 1)
	// struct ipt_get_entries: name, size, entries aligned to 8.
	const header = tableName + 8
	answer := make([]byte, header+size)
	copy(answer, name)
	binary.NativeEndian.PutUint32(answer[tableName:], uint32(size))
	if err := f.get(fd, soGetEntries, answer); err != nil {
		return nil, err
	}
	t.entries = answer[header:]
	return t, nil
}

// forward returns the entries of chain FORWARD, without that of its policy, and the policy.
func (f legacyFamily) forward(t *legacyTable) (chain []byte, policy int, err error) {
	begin, end := t.begin[forwardHook], t.end[forwardHook]
	if begin > end || end+f.entry > len(t.entries) {
		return nil, 0, fmt.Errorf("chain FORWARD at %d to %d of %d bytes", begin, end, len(t.entries))
	}
	policy, ok := f.verdict(t.entries[end:])
	if !ok {
		return nil, 0, errors.New("chain FORWARD has no policy")
	}
	return t.entries[begin:end], policy, nil
}

func (f legacyFamily) get(fd, option int, buf []byte) error {
	size := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(f.level), uintptr(option),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// verdict returns the verdict of an entry with a standard target: struct xt_entry_target with an
// empty name, then the verdict.
func (f legacyFamily) verdict(entry []byte) (int, bool) {
	at := int(binary.NativeEndian.Uint16(entry[f.offsets:]))
	if len(entry) < at+targetData+4 || entry[at+targetName] != 0 {
		return 0, false
	}
	return int(int32(binary.NativeEndian.Uint32(entry[at+targetData:]))), true
}

// accepts reports whether one of the entries accepts all packets that arrive (or leave) by the
// link.
func (f legacyFamily) accepts(chain []byte, link podLink, out bool) bool {
	for len(chain) >= f.entry {
		next := int(binary.NativeEndian.Uint16(chain[f.offsets+2:]))
		if next < f.entry || next > len(chain) {
			return false
		}
		entry := chain[:next]
		chain = chain[next:]
		target := int(binary.NativeEndian.Uint16(entry[f.offsets:]))
		if v, ok := f.verdict(entry); !ok || v != acceptCode || target != f.entry {
			continue // another verdict, or it has matches
		}
		// Everything before the offsets is zero in an entry without conditions, except for the
		// interface.
		rest := slices.Clone(entry[:f.offsets-4])
		ifname, mask := f.ifaces, f.ifaces+2*unix.IFNAMSIZ
		if out {
			ifname, mask = ifname+unix.IFNAMSIZ, mask+unix.IFNAMSIZ
		}
		name := unix.ByteSliceToString(entry[ifname : ifname+unix.IFNAMSIZ])
		masked := 0
		for masked < unix.IFNAMSIZ && entry[mask+masked] == 0xff {
			masked++
		}
		clear(rest[ifname : ifname+unix.IFNAMSIZ])
		clear(rest[mask : mask+unix.IFNAMSIZ])
		if slices.Max(rest) == 0 && name != "" && link.within(name[:min(len(name), masked)], masked <= len(name)) {
			return true
		}
	}
	return false
}
