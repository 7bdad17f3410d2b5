// Package wireguard has this node's keys of WireGuard.
package wireguard

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/huskd/husk/internal/atomicfile"
	"github.com/huskd/husk/internal/network/peer"
)

// Program is the companion that takes the place of a kernel's WireGuard. Its arguments are a link,
// which it makes, and the link's MTU. It ends when the link is deleted.
const Program = "husk-wireguard"

// Keys are this node's private keys of WireGuard. Two files keep them: one that of the first link,
// and one that of the second while the key is being changed. Together they say how far the change
// has come, so each step is the writing, replacing or removing of one file. See
// network/backend/rotation.go.
type Keys struct {
	file    string
	changed func(private ...peer.Key)

	mu          sync.Mutex   // Invariant: guards the fields below.
	first, next *wgtypes.Key // next is nil unless the key is being changed
}

// OpenKeys returns the keys in a file, which it makes if there is none, and in another beside it.
// It calls changed with the private keys, now and whenever there are others.
func OpenKeys(file string, changed func(private ...peer.Key)) (*Keys, error) {
	k := &Keys{file: file, changed: changed}
	var err error
	k.first, err = readKey(file)
	if errors.Is(err, os.ErrNotExist) {
		k.first, err = makeKey(file)
	}
	if err != nil {
		return nil, fmt.Errorf("wireguard key: %w", err)
	}
	if k.next, err = readKey(k.nextFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("next wireguard key: %w", err)
	}
	k.tell()
	return k, nil
}

func (k *Keys) nextFile() string { return k.file + ".next" }

// tell tells the private keys. The caller holds k.mu or is the only user.
func (k *Keys) tell() {
	private := []peer.Key{peer.Key(*k.first)}
	if k.next != nil {
		private = append(private, peer.Key(*k.next))
	}
	k.changed(private...)
}

// Public returns the public keys of the first and the second link. The second one is zero unless
// the key is being changed.
func (k *Keys) Public() (first, second peer.Key) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.next != nil {
		second = peer.Key(k.next.PublicKey())
	}
	return peer.Key(k.first.PublicKey()), second
}

// Begin makes a new key, for the second link.
func (k *Keys) Begin() error {
	return k.step(func() (err error) {
		if k.next == nil {
			k.next, err = makeKey(k.nextFile())
		}
		return err
	})
}

// Switch gives the first link the key of the second.
func (k *Keys) Switch() error {
	return k.step(func() error {
		if k.next == nil || *k.first == *k.next {
			return nil
		}
		if err := writeKey(k.file, *k.next); err != nil {
			return err
		}
		k.first = k.next
		return nil
	})
}

// End ends the change of the key.
func (k *Keys) End() error {
	return k.step(func() error {
		if err := os.Remove(k.nextFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		k.next = nil
		return nil
	})
}

func (k *Keys) step(act func() error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := act(); err != nil {
		return fmt.Errorf("change the wireguard key: %w", err)
	}
	k.tell()
	return nil
}

// readKey reads a key, and closes its file to others: it may have been copied without its mode.
func readKey(file string) (*wgtypes.Key, error) {
	if err := os.Chmod(file, 0o600); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	key, err := wgtypes.ParseKey(strings.TrimSpace(string(text)))
	if err != nil || key == (wgtypes.Key{}) {
		return nil, fmt.Errorf("%s has no key of 32 bytes in base64: remove it, and huskd makes another", file)
	}
	return &key, nil
}

// makeKey makes a key and writes it.
func makeKey(file string) (*wgtypes.Key, error) {
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, err
	}
	return &key, writeKey(file, key)
}

func writeKey(file string, key wgtypes.Key) error {
	return atomicfile.Write(file, []byte(key.String()+"\n"), 0o600)
}
